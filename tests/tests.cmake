# tests/FOLDER/**/*_test.cc -> one binary FOLDER_test, a ctest case labelled FOLDER.
foreach(folder base importer dma engine server cuda)  # tests/conformance/cuda: in emulator_test
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS tests/${folder}/*.cc tests/conformance/${folder}/*.cc)
  list(FILTER tests EXCLUDE REGEX "/fake/|/conformance/cuda/|/server/text/")
  if(tests)
    add_executable(${folder}_test EXCLUDE_FROM_ALL ${tests})
    target_link_libraries(${folder}_test PRIVATE ark_${folder} ark_importer GTest::gtest GTest::gmock GTest::gtest_main)
    ark_sanitize(${folder}_test)
    ark_unite(${folder}_test)
    add_test(NAME ${folder} COMMAND ${folder}_test)
    set_tests_properties(${folder} PROPERTIES LABELS ${folder})
  endif()
endforeach()
# server/text alone, which strangers feed: instrumenting it is cheap.
file(GLOB_RECURSE tests CONFIGURE_DEPENDS tests/server/text/*.cc)
add_executable(text_test EXCLUDE_FROM_ALL ${tests})
target_link_libraries(text_test PRIVATE ark_text GTest::gtest GTest::gmock GTest::gtest_main)
ark_sanitize(text_test)
ark_unite(text_test)
add_test(NAME text COMMAND text_test)
set_tests_properties(text PROPERTIES LABELS server)
# The scheduler alone, without the rest of the server: instrumenting it is cheap. Part of server_test too.
file(GLOB_RECURSE tests CONFIGURE_DEPENDS server/schedule/*.cc tests/server/schedule/*.cc)
add_executable(scheduler_test EXCLUDE_FROM_ALL ${tests})
target_link_libraries(scheduler_test PRIVATE ark_engine ark_importer GTest::gtest GTest::gmock GTest::gtest_main)
ark_sanitize(scheduler_test)
ark_unite(scheduler_test)
# What several threads run, under the thread sanitizer: channels, loops with all their kernels, the scheduler. These are
# compiled anew into the test, where they come before the libraries' own; what only compiles or knows CUDA stays plain.
if(NOT ARK_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  ark_sources(instrumented base/ir/kernels dma engine/run engine/cpu engine/plain engine/ragged_runner.cc
    server/schedule)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS tests/dma/*.cc tests/conformance/dma/*.cc tests/conformance/engine/*.cc
    tests/server/schedule/*.cc tests/engine/mailbox_test.cc tests/engine/loop_test.cc tests/engine/abort_test.cc)
  add_executable(threads_test EXCLUDE_FROM_ALL ${instrumented} ${tests})
  set_target_properties(threads_test PROPERTIES ARK_INSTRUMENTED ON)
  target_compile_options(threads_test PRIVATE -fsanitize=thread -fno-omit-frame-pointer -g1 -O1)
  target_link_options(threads_test PRIVATE -fsanitize=thread -fuse-ld=bfd)
  target_link_libraries(threads_test PRIVATE ark_engine ark_importer GTest::gtest GTest::gmock GTest::gtest_main)
  ark_unite(threads_test)
endif()
# A CUDA driver without a GPU, and one as old as CUDA 11: the tests open them by name.
foreach(fake fake_libcuda fake_old_libcuda)
  add_library(${fake} SHARED EXCLUDE_FROM_ALL tests/cuda/fake/libcuda.cc)
  target_link_libraries(${fake} PRIVATE Threads::Threads)
  add_dependencies(cuda_test ${fake})
endforeach()
target_compile_definitions(fake_old_libcuda PRIVATE ARK_FAKE_WITHOUT_GRAPHS)
target_compile_definitions(cuda_test PRIVATE ARK_FAKE_LIBCUDA="$<TARGET_FILE:fake_libcuda>"
  ARK_FAKE_OLD_LIBCUDA="$<TARGET_FILE:fake_old_libcuda>")
# The emulator of GPUs runs kernels on fibers, with its own race detector in the place of libtsan: kernels
# (*_kernel.cc) are instrumented, nothing is linked with a sanitizer.
if(NOT ARK_SANITIZE)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS tests/emulator/*.cc tests/conformance/cuda/*.cc)
  add_executable(emulator_test EXCLUDE_FROM_ALL ${tests})
  foreach(source ${tests})
    if(source MATCHES "_test\\.cc$")  # each has helpers of its own
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_kernel\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-fsanitize=thread;-g1;-fno-strict-aliasing;--param=tsan-instrument-func-entry-exit=0")
    endif()
  endforeach()
  target_compile_definitions(emulator_test PRIVATE ARK_DEVICE_HEADER="tests/emulator/device_emulated.h"
    ARK_EMULATOR_COMPILER="${CMAKE_CXX_COMPILER}" ARK_EMULATOR_CACHE="${CMAKE_BINARY_DIR}/emulator-cache")
  target_link_libraries(emulator_test PRIVATE ark_engine ark_importer GTest::gtest GTest::gmock GTest::gtest_main)
  ark_unite(emulator_test)
  set_target_properties(emulator_test PROPERTIES ENABLE_EXPORTS ON)  # loaded kernels call its hooks
  add_test(NAME emulator COMMAND emulator_test)
  set_tests_properties(emulator PROPERTIES LABELS cuda)
endif()
add_custom_target(tests)
foreach(folder base importer dma engine server text scheduler threads cuda emulator)
  if(TARGET ${folder}_test)
    add_dependencies(tests ${folder}_test)
  endif()
endforeach()

if(ARK_FUZZ)
  file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cc)
  foreach(fuzzer ${fuzzers})
    get_filename_component(stem ${fuzzer} NAME_WE)
    add_executable(${stem} EXCLUDE_FROM_ALL ${fuzzer})
    ark_sanitize(${stem})
    target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${stem} PRIVATE ark_importer ark_text)
  endforeach()
  target_sources(http_head_fuzz PRIVATE server/http/head.cc)
endif()
