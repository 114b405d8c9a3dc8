# SPDX-License-Identifier: MIT OR Apache-2.0
# Lays out what cargo built as it is installed: libdlockX.so -> .so.0 -> .so.VERSION
file(MAKE_DIRECTORY "${TO}")
foreach(part c s m)
  set(real "libdlock${part}.so.${VERSION}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E copy_if_different
                  "${FROM}/libdlock${part}.so" "${TO}/${real}" RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "cargo built no ${FROM}/libdlock${part}.so")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink "${real}" "${TO}/libdlock${part}.so.0")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink
                  "libdlock${part}.so.0" "${TO}/libdlock${part}.so")
endforeach()
