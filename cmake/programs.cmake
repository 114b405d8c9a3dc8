# SPDX-License-Identifier: MIT OR Apache-2.0
# dlockd and dlock, which the cargo build of CMakeLists.txt has made, and what belongs to them:
# manuals, completions and, with DLOCK_SERVICE, the service of systemd and its configuration.
include(GNUInstallDirs)
set(release "${DLOCK_CARGO_TARGET_DIR}/release")
set(packaging "${DLOCK_ROOT}/packaging")

install(PROGRAMS "${release}/dlockd" DESTINATION bin COMPONENT server)
install(PROGRAMS "${release}/dlock" DESTINATION bin COMPONENT tools)

set(manuals "${DLOCK_ROOT}/docs/man")
install(FILES "${manuals}/dlockd.8" DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT server)
install(FILES "${manuals}/dlockd.toml.5" DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 COMPONENT server)
install(FILES "${manuals}/dlock.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
file(GLOB manuals_of_c "${manuals}/*.3")
install(FILES ${manuals_of_c} DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT devel)

foreach(program_component "dlock;tools" "dlockd;server")
  list(GET program_component 0 program)
  list(GET program_component 1 component)
  set(completions "${DLOCK_ROOT}/docs/completions")
  install(FILES "${completions}/${program}.bash" RENAME ${program}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${component})
  install(FILES "${completions}/_${program}"
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT ${component})
  install(FILES "${completions}/${program}.fish"
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT ${component})
endforeach()

if(service)
  set(DLOCK_BIN "${CMAKE_INSTALL_PREFIX}/bin")
  set(DLOCK_ETC "${CMAKE_INSTALL_FULL_SYSCONFDIR}")
  set(DLOCK_UNITDIR lib/systemd/system CACHE STRING "Folder of systemd's units under the prefix")
  set(DLOCK_SYSUSERSDIR lib/sysusers.d CACHE STRING "Folder of systemd-sysusers under the prefix")
  configure_file("${packaging}/service/dlockd.service.in" dlockd.service @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/dlockd.service"
          DESTINATION ${DLOCK_UNITDIR} COMPONENT server)
  install(FILES "${packaging}/service/dlock.sysusers.conf" RENAME dlock.conf
          DESTINATION ${DLOCK_SYSUSERSDIR} COMPONENT server)
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DIN=${DLOCK_ROOT}/dlock-server/dlockd.toml"
    "-DOUT=${CMAKE_CURRENT_BINARY_DIR}/dlockd.toml" -P "${packaging}/service/config.cmake"
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "the configuration of the service cannot be made")
  endif()
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/dlockd.toml"
          DESTINATION "${CMAKE_INSTALL_FULL_SYSCONFDIR}/dlock" COMPONENT server)
endif()
