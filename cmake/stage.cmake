# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes the shared libraries of what cargo built, laid out as they are installed:
# libdlockX.so -> .so.0 -> .so.VERSION. They are linked here and not by rustc, whose own list of
# exported names excludes symbol versions (the linkers refuse two lists).
#   CC, FLAGS   the C compiler and the user's flags for shared libraries
#   FROM, TO    folders of the archives, and of the libraries
#   SYMBOLS     folder of the lists of names
file(MAKE_DIRECTORY "${TO}")
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
foreach(part c s m)
  set(real "libdlock${part}.so.${VERSION}")
  set(archive "${FROM}/libdlock${part}.a")
  if(NOT EXISTS "${archive}")
    message(FATAL_ERROR "cargo built no ${archive}")
  endif()
  # Whole, because nothing refers to the exported names; what they do not need is dropped again.
  execute_process(COMMAND "${CC}" -shared -o "${TO}/${real}.new"
    -Wl,-soname,libdlock${part}.so.0 "-Wl,--version-script=${SYMBOLS}/dlock${part}.map"
    -Wl,--gc-sections,--as-needed,-z,defs,-z,relro,-z,now,-z,noexecstack,--build-id=sha1,--hash-style=both
    ${flags}
    -Wl,--whole-archive "${archive}" -Wl,--no-whole-archive -lgcc_s -lpthread -ldl -lm -lc
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "libdlock${part}.so cannot be linked")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -E copy_if_different
                  "${TO}/${real}.new" "${TO}/${real}" RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${TO}/${real} cannot be written")
  endif()
  file(REMOVE "${TO}/${real}.new")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink "${real}" "${TO}/libdlock${part}.so.0")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E create_symlink
                  "libdlock${part}.so.0" "${TO}/libdlock${part}.so")
endforeach()
