# The examples and tools as tests: that they run, and that mistakes end in a message and exit code 1.
add_test(NAME examples.01_tensors COMMAND 01_tensors)
set_tests_properties(examples.01_tensors PROPERTIES PASS_REGULAR_EXPRESSION "bf16  .*total ")
add_test(NAME examples.02_autograd COMMAND 02_autograd)
add_test(NAME tools.halftone-info COMMAND halftone-info)
set_tests_properties(tools.halftone-info PROPERTIES
  PASS_REGULAR_EXPRESSION "halftone +${PROJECT_VERSION}.*reference.*cpu.*cuda")

set(weights ${CMAKE_CURRENT_BINARY_DIR}/weights.safetensors)
add_test(NAME examples.03_train COMMAND 03_train_fashion_mnist --epochs 1 --limit 6000 --batch 64
         --threads 2 --save ${weights})
# After one epoch on a tenth of the images; an untrained network has 10 %.
set_tests_properties(examples.03_train PROPERTIES FIXTURES_SETUP weights
  PASS_REGULAR_EXPRESSION "reloaded and verified\ntest accuracy [789][0-9]")
add_test(NAME examples.03_load COMMAND 03_train_fashion_mnist --epochs 0 --limit 1000 --load ${weights}
         --save ${weights}.again)
set_tests_properties(examples.03_load PROPERTIES FIXTURES_REQUIRED weights
  PASS_REGULAR_EXPRESSION "test accuracy [789][0-9]")

# expect_failure(name message command arguments...)
function(expect_failure name message)
  list(POP_FRONT ARGN program)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} "-DCOMMAND=$<TARGET_FILE:${program}>;${ARGN}" -DEXIT=1
           "-DMESSAGE=${message}" -P ${CMAKE_CURRENT_SOURCE_DIR}/expect.cmake)
endfunction()
set(program 03_train_fashion_mnist --save ${CMAKE_CURRENT_BINARY_DIR}/unused.safetensors)
expect_failure(examples.03_no_data "no file train-images-idx3-ubyte.gz in .*dataset-fashion-mnist"
               ${program} --data /nowhere)
expect_failure(examples.03_unwritable "cannot write /nowhere/weights" ${program} --save /nowhere/weights)
expect_failure(examples.03_save_to_directory "cannot write" ${program} --save ${CMAKE_CURRENT_BINARY_DIR})
expect_failure(examples.03_bad_epochs "--epochs" ${program} --epochs many)
expect_failure(examples.03_bad_batch "--batch" ${program} --batch 0)
expect_failure(examples.03_bad_lr "--lr" ${program} --lr -1)
expect_failure(examples.03_bad_optimizer "adamw" ${program} --optimizer adamax)
expect_failure(examples.03_no_weights "--load" ${program} --load /nowhere/weights)
expect_failure(examples.03_not_weights "safetensors" ${program} --load ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt)
expect_failure(tools.bad_isa "no instruction set named .avx3." halftone-info)
set_tests_properties(tools.bad_isa PROPERTIES ENVIRONMENT HALFTONE_MAX_ISA=avx3)
