# The examples and tools as tests: they run, and mistakes give a message and exit code 1.
expect(examples.01_tensors OUTPUT "bf16: 6 bytes, .0.1001, +1, +256.*total " COMMAND 01_tensors)
add_test(NAME examples.02_autograd COMMAND 02_autograd)
expect(examples.03_formats OUTPUT "f16 +16 +11 +5.96e-08 +6.1e-05 +65504 .*  4.000 4.500 5.000 .*f16 +0.0999756 +1.00098 +257 +1.19209e-07 +inf" COMMAND 03_formats)
set(pictures ${CMAKE_CURRENT_BINARY_DIR}/pictures)
expect(examples.04_rounding OUTPUT "to_odd +3.0 +3.0 +3.0 +-3.0 .*1000000 equal.*by to_odd, then to bf16 +1.0078125.*nearest 2.000, stochastic 2.30.*nearest 1; .*five seeds: 1[0-3].*rounding.svg"
       COMMAND 04_rounding --pictures ${pictures})
set_tests_properties(examples.04_rounding PROPERTIES FIXTURES_SETUP rounding_picture)
add_test(NAME examples.04_picture_docs COMMAND ${CMAKE_COMMAND} -E compare_files ${pictures}/rounding.svg
         ${PROJECT_SOURCE_DIR}/docs/pictures/rounding.svg)
set_tests_properties(examples.04_picture_docs PROPERTIES FIXTURES_REQUIRED rounding_picture)
expect(examples.05_sums OUTPUT "in bf16: 256.*bf16, in order .*1.0e.00\nbf16, pairwise .*[0-9]e-0[34]\n.*f32, pairwise .*e-08\n.*one rounding +error 3.*sums.svg"
       COMMAND 05_sums --pictures ${pictures})
expect(tools.halftone-info OUTPUT "halftone +${PROJECT_VERSION}.*reference.*cpu +[a-z0-9_]+( and amx)? kernels.*cuda"
       COMMAND halftone-info)
# AMX is in the kernels' description only if the CPU has it and the cap allows it.
expect(tools.halftone-info_capped OUTPUT "cpu +(baseline|avx2|avx512|avx512_bf16) kernels, (no )?oneDNN" COMMAND halftone-info)
set_tests_properties(tools.halftone-info_capped PROPERTIES ENVIRONMENT HALFTONE_MAX_ISA=avx512_bf16)

expect(tools.halftone-lab_formats OUTPUT "e4m3 +8 +4 +-6..8 +448 .*nvfp4 +e2m1, blocks of 1x16 with e4m3 scales" COMMAND halftone-lab
       formats --samples 4096)
expect(tools.halftone-lab_numbers OUTPUT "0 0.5 1 1.5 2 3 4 6" COMMAND halftone-lab formats e2m1 --samples 4096)
set(policies ${PROJECT_SOURCE_DIR}/amp/policies)
expect(tools.halftone-lab_show OUTPUT "transformer.h.0.attn.c_attn/linear.0 .4 like this. .*rule 0 .*% of the flops.*resolved [0-9a-f]+"
       COMMAND halftone-lab show ${policies}/te_delayed_hybrid.json --workload gpt_tiny)
expect(tools.halftone-lab_show_diff OUTPUT "0/linear.0.*- low_precision . f32 .*[+] low_precision . bf16"
       COMMAND halftone-lab show fp32 --workload mlp_tiny --diff amp-bf16)
expect(tools.halftone-lab_show_diff_of_content OUTPUT "0/linear.0.*- .*scaled per tensor[)].*[+] .*scaled per tensor from the largest of 1024 steps"
       COMMAND halftone-lab show te_current --workload mlp_tiny --diff te_delayed_hybrid)
expect(tools.halftone-lab_show_same OUTPUT "no site differs" COMMAND halftone-lab show amp-bf16 --workload mlp_tiny --diff ${policies}/amp-bf16.json)
expect(tools.halftone-lab_show_json OUTPUT "\"site\": \"0/linear.0\".*\"computes_in\": \"bf16\".*\"hash\"" COMMAND halftone-lab show amp-bf16 --workload mlp_tiny --json -)

# The picture of docs/amp_from_the_inside.md is the command's output. If Graphviz is missing, the command says so.
expect(tools.halftone-lab_graph OUTPUT "operations in the order of computation.*double border.*0/linear.0.*tapped.*n6 -> result"
       COMMAND halftone-lab graph te_delayed_hybrid --workload mlp_tiny)
add_test(NAME tools.halftone-lab_graph_write COMMAND halftone-lab graph amp-bf16 --workload mlp_tiny
         -o ${CMAKE_CURRENT_BINARY_DIR}/mlp_amp-bf16.dot)
set_tests_properties(tools.halftone-lab_graph_write PROPERTIES FIXTURES_SETUP mlp_graph)
add_test(NAME tools.halftone-lab_graph_docs COMMAND ${CMAKE_COMMAND} -E compare_files
         ${CMAKE_CURRENT_BINARY_DIR}/mlp_amp-bf16.dot ${PROJECT_SOURCE_DIR}/docs/pictures/mlp_amp-bf16.dot)
set_tests_properties(tools.halftone-lab_graph_docs PROPERTIES FIXTURES_REQUIRED mlp_graph)
expect(tools.halftone-lab_graph_no_graphviz EXIT 2 MESSAGE "cannot be started: No such file.*Install the Debian package graphviz"
       COMMAND halftone-lab graph amp-bf16 -o ${CMAKE_CURRENT_BINARY_DIR}/unmade.svg)
set_tests_properties(tools.halftone-lab_graph_no_graphviz PROPERTIES ENVIRONMENT PATH=/nowhere)
expect(tools.halftone-lab_graph_no_kind EXIT 2 MESSAGE "graph.txt: its ending says no kind of picture. Use .dot, .svg"
       COMMAND halftone-lab graph amp-bf16 -o graph.txt)
expect(tools.halftone-lab_graph_unwritable EXIT 2 MESSAGE "cannot write /nowhere/graph.dot"
       COMMAND halftone-lab graph amp-bf16 -o /nowhere/graph.dot)
find_program(HALFTONE_GRAPHVIZ dot)
if(HALFTONE_GRAPHVIZ)
  add_test(NAME tools.halftone-lab_graph_picture COMMAND halftone-lab graph split-bf16 --workload mlp_tiny -o ${CMAKE_CURRENT_BINARY_DIR}/mlp.svg)
endif()

expect(tools.halftone-lab_check OUTPUT "nvfp4 +20.4.*all right" COMMAND halftone-lab formats --check)

# An empty variable is the same as an unset one.
expect(tools.empty_variables OUTPUT "cpu +(baseline|avx2|avx512|avx512_bf16|avx512_bf16 and amx) kernels.*the CPU uses +cpu"
       COMMAND halftone-info)
set_tests_properties(tools.empty_variables PROPERTIES ENVIRONMENT
  "HALFTONE_MAX_ISA=;HALFTONE_PORTABLE_BITS=;HALFTONE_CPU_BACKEND=;HALFTONE_DATA=;HALFTONE_CUDA_LIBRARIES=;HALFTONE_CUDA_CACHE=")

set(weights ${CMAKE_CURRENT_BINARY_DIR}/weights.safetensors)
expect(examples.21_train OUTPUT "reloaded and verified\ntest accuracy [789][0-9]"
       COMMAND 21_train_fashion_mnist --epochs 1 --limit 6000 --batch 64 --threads 2 --save ${weights})
# After one epoch on a tenth of the images; an untrained network has 10 %.
set_tests_properties(examples.21_train PROPERTIES FIXTURES_SETUP weights)
foreach(optimizer lion adafactor lamb muon)
  expect(examples.21_train_${optimizer} OUTPUT "reloaded and verified\ntest accuracy [6789][0-9]"
         COMMAND 21_train_fashion_mnist --epochs 1 --limit 3000 --batch 32 --threads 2 --optimizer ${optimizer}
                 --save ${CMAKE_CURRENT_BINARY_DIR}/${optimizer}.safetensors)
endforeach()
expect(examples.21_load OUTPUT "test accuracy [789][0-9]"
       COMMAND 21_train_fashion_mnist --epochs 0 --limit 1000 --load ${weights} --save ${weights}.again)
set_tests_properties(examples.21_load PROPERTIES FIXTURES_REQUIRED weights)

expect(examples.10_autocast OUTPUT "casts 1, found in the cache 10 times.*casts 2 .*policy pytorch-cuda.*Did you mean .softmax"
       COMMAND 10_autocast)
expect(examples.08_master_weights OUTPUT "1.2344600.*bf16 +1.234375: nothing.*step 41, to 1.2265625.*step 40, to.*moves 1.[1-4].*4000 +0.016[0-9]* +0.898438"
       COMMAND 08_master_weights)
# A significand with one bit too few: the gradient is worse in every seed. Softmax is not.
expect(examples.12_published_lists OUTPUT "pytorch-cuda +16 bits.*flashlight-o1 .* 20/20 "
       COMMAND 12_published_lists)
expect(examples.13_own_policy OUTPUT "pytorch-cuda .*softmax, also in bf16 +[0-9.e-]+ +[0-9]/20 .*cumsum, also in bf16 +[0-9.e-]+ +[12][0-9]/20 +[0-9.e-]+ +20/20.*large products only"
       COMMAND 13_own_policy)
# f16 without a loss scale fails; with one it gives the result of f32.
expect(examples.06_bf16_or_fp16 OUTPUT "f16, no loss scale +test accuracy +[1-5][0-9].*predicted above +test accuracy +[78][0-9].*dynamic loss scale +test accuracy +[78]"
       COMMAND 06_bf16_or_fp16 --limit 4000)
# Half of the classes, then the other half; then the same folders and weights as a user's.
set(finetune ${CMAKE_CURRENT_BINARY_DIR}/finetune)
expect(examples.23_finetune OUTPUT "pre-training: 5 classes, 400 images.*2 are new.*fine-tuning.*final accuracy [789][0-9]"
       COMMAND 23_finetune_resnet18 --per-class 80 --epochs 2 --work ${finetune})
set_tests_properties(examples.23_finetune PROPERTIES FIXTURES_SETUP finetune)
expect(examples.23_own_data OUTPUT "120 tensors from .*2 are new.*final accuracy [6-9][0-9].*predictions.png in"
       COMMAND 23_finetune_resnet18 --data ${finetune}/second_half --size 32 --width 16 --weights
       ${finetune}/pretrained.safetensors --epochs 2 --strategy o2-bf16 --work ${finetune}/own)
set_tests_properties(examples.23_own_data PROPERTIES FIXTURES_REQUIRED finetune)

# A small GPT beats the bigram model within a few steps; unknown files and characters are errors.
expect(examples.24_char_gpt OUTPUT "bigram model: 2.[56].*fp32.*step 300/.*validation  loss 2.[0-3].*amp-bf16.*step 300/.*validation  loss 2.[0-3]"
       COMMAND 24_char_gpt --steps 300 --lr 5e-3 --width 64 --layers 2 --context 32 --sample 80 --strategies
       fp32,amp-bf16)
expect(examples.27_custom_op OUTPUT "swish_gate: passed.*swish_gate +widest_input +bf16.*swish_gate +full_precision +f32.*swish_gate. is refused under autocast.*dtypes differ"
       COMMAND 27_custom_op)

expect(examples.16_what_fp4_does OUTPUT "negatives: 0 0.5 1 1.5 2 3 4 6.*mxfp4 +4.25 +1[0-9].*nvfp4 +4.50.*outlier.* 60 .*0.00 +0.98 .*nearest 2.000, stochastic 2.30" COMMAND 16_what_fp4_does)
expect(examples.14_how_errors_spread OUTPUT "normal numbers +bf16 .* 1.00\n.*a b, 512 terms +[0-9.e-]+ +(0.9[0-9]|1.0[0-9])\n.*cancels 100 +[0-9.e-]+ +[4-6][0-9][.].*\n +64 +[12][.][0-9]+e-02 +1.88e-02 "
       COMMAND 14_how_errors_spread)
expect(examples.15_fp8_scaling OUTPUT "\n   0 .* 8.[0-9] dB +99.4 % 0 +31.[0-9] dB .*\n  20 .* 0.2 dB .*100000 +[67][.][0-9] +30.[0-9] +0.0 +18.*e5m2, no scale +0.1[0-9]+ +0.0[2-9][0-9]+ .*te_current +[0-9.]+ +0.00.*fp8-scales.svg"
       COMMAND 15_fp8_scaling --pictures ${pictures})
expect(examples.18_probe_explain_search OUTPUT "0/linear.0 +input +0.[0-9]+ % +2.[0-9]+ %.*0/linear.0 +grad_output +3[0-9].*6/linear.0, grad_output: .*262144 would do.*layers 3 2 1 0 "
       COMMAND 18_probe_explain_search)
# The hash is that of every machine.
foreach(isa amx avx2 baseline)
  expect(examples.19_same_bits_${isa} OUTPUT "portable bits\n4. subnormals: 32 times 2.-130 .* is 2.35099e-38.*has the same bits\n6.* the same bits\n   weights 1c2f0842fab21ff8\n$" COMMAND 19_same_bits)
  set_tests_properties(examples.19_same_bits_${isa} PROPERTIES ENVIRONMENT HALFTONE_MAX_ISA=${isa})
endforeach()
expect(examples.17_policy_file OUTPUT "my-fp8 +0.00[0-9]+.*0/linear.0 .2 like this. +low_precision . f32 . input=e4m3.*products that no rule reaches: 4/linear.0.*read again it is the same" COMMAND 17_policy_file)
expect(examples.07_grad_scaler_in_40_lines OUTPUT "2.24 +overflow +stayed +0.*2.2[0-9] +[0-9]+ +moved +3.*overflow +stayed.*after 20 steps, .*library's: 0\n.*0[.]1220.*unscale.. called twice.*as above +0[.]1220.*1e5 +overflow +stayed +512.*after 1000 steps, .*library's: 0\n"
       COMMAND 07_grad_scaler_in_40_lines --pictures ${pictures})
expect(examples.09_autocast_in_60_lines OUTPUT "casts made, [1-9][0-9]* found.*last two: 0\n.*with the check +weight 1: 1; weight 2: 2.*without +weight 1: 1; weight 2: 1.*weight: 1, of the bias.*weight: none, of the bias"
       COMMAND 09_autocast_in_60_lines)
expect(examples.11_bytes_through_one_step OUTPUT "fp32 .*forward +1560.0 +0.0 +3120.1 +0.0 +0.0 +2072.0 .*amp-fp16.*forward +1560.0 +0.0 +3120.1 +0.0 +778.0 +1304.0 .*o2-bf16.*backward +780.0 +1560.0 +3120.1 +780.0 +0.0 +0.0 "
       COMMAND 11_bytes_through_one_step)
expect(examples.28_distributed OUTPUT "1 process; test accuracy [5-9][0-9].*\nhash [0-9a-f]+\n$"
       COMMAND 28_distributed --strategy split-bf16 --batches 40 --batches-per-step 2 --hash)
# The file of the lesson, and its logits in onnxruntime where an interpreter has it.
set(served ${CMAKE_CURRENT_BINARY_DIR}/served)
expect(examples.29_train_here OUTPUT "test accuracy [78][0-9].*lenet.onnx: opset 18, IR version 8, 10 nodes, 1686584 bytes.*\nAnkle boot [^\n]+\nPullover [^\n]+\nTrouser [^\n]+\n$"
       COMMAND 29_train_here_serve_there --batches 60 --directory ${served})
add_test(NAME examples.29_serve_there COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/onnx/lesson.sh
         ${PROJECT_SOURCE_DIR}/examples/29_train_here_serve_there.py ${served})
set_tests_properties(examples.29_train_here PROPERTIES FIXTURES_SETUP served)
set_tests_properties(examples.29_serve_there PROPERTIES FIXTURES_REQUIRED served SKIP_RETURN_CODE 77 LABELS "python;quick")
expect(examples.25_your_own_data OUTPUT "max_epochs is reached; R2 0.9[0-9].*old town +60 m2, new: +[23][0-9][0-9] .*park"
       COMMAND 25_your_own_data --directory ${CMAKE_CURRENT_BINARY_DIR}/runs_flats)
expect(examples.25_predict OUTPUT "^harbour .*old town +60 m2, new: +[23][0-9][0-9] .*park"
       COMMAND 25_your_own_data --predict --directory ${CMAKE_CURRENT_BINARY_DIR}/runs_flats)
set_tests_properties(examples.25_your_own_data PROPERTIES FIXTURES_SETUP flats)
set_tests_properties(examples.25_predict PROPERTIES FIXTURES_REQUIRED flats)

# The subject in one file: 50 steps under each strategy; the whole run, which takes a minute and gets 87 % under each.
set(one_file "zcat -f \"\${HALFTONE_DATA:-/usr/share/datasets}\"/fashion-mnist/* | $<TARGET_FILE:one_file>")
set(short_rows "")
set(rows "")
foreach(row "fp32 +1.00x" "amp-bf16 +1.00x" "amp-fp16 +1.00x" "o2-bf16 +1.50x" "split-bf16 +1.00x" "full-bf16 +0.50x"
            "full-bf16-kahan +1.00x" "full-bf16-sr +0.50x")
  string(APPEND short_rows "${row}[^|]*[|] +0[.][56789][0-9]+ +[67].*")
  string(APPEND rows "${row}[^|]*[|] +0[.]2[0-9]+ +8[789][.].*")
endforeach()
add_test(NAME examples.one_file COMMAND ${CMAKE_COMMAND} "-DCOMMAND=sh;-c;${one_file} --short" -DEXIT=0 "-DOUTPUT=${short_rows}"
         -DMESSAGE=Reading -P ${CMAKE_CURRENT_SOURCE_DIR}/expect.cmake)
add_test(NAME examples.one_file_sgd COMMAND ${CMAKE_COMMAND} "-DCOMMAND=sh;-c;${one_file} --short --sgd o2-bf16" -DEXIT=0
         "-DOUTPUT=o2-bf16 +1.50x +107.5 +215.0 +107.5 +215.0 " -DMESSAGE=Reading -P ${CMAKE_CURRENT_SOURCE_DIR}/expect.cmake)
add_test(NAME examples.one_file_accuracy COMMAND ${CMAKE_COMMAND} "-DCOMMAND=sh;-c;${one_file}" -DEXIT=0 "-DOUTPUT=${rows}"
         -DMESSAGE=Reading -P ${CMAKE_CURRENT_SOURCE_DIR}/expect.cmake)
expect(examples.one_file_bad_name EXIT 1 MESSAGE "\\[one_file\\] cannot use .amp-bf17.*Run: zcat" COMMAND one_file amp-bf17)
add_test(NAME examples.one_file_no_data COMMAND ${CMAKE_COMMAND} "-DCOMMAND=sh;-c;echo | $<TARGET_FILE:one_file>" -DEXIT=1
         -DOUTPUT= "-DMESSAGE=does not have the test images.*Run: zcat" -P ${CMAKE_CURRENT_SOURCE_DIR}/expect.cmake)

# The Trainer and the loop by hand end with the same weights; a Trainer that has finished says so when it is asked again.
set(runs ${CMAKE_CURRENT_BINARY_DIR}/runs)
add_test(NAME examples.22_26_clean COMMAND ${CMAKE_COMMAND} -E rm -rf ${runs})
set_tests_properties(examples.22_26_clean PROPERTIES FIXTURES_SETUP runs_gone)
expect(examples.22_trainer OUTPUT "> amp-fp16 .*epoch 3/3  step 40/40  loss .*  scale 65536  skipped 0.*max_epochs is reached; test accuracy [78][0-9]"
       COMMAND 22_trainer --precision 16-mixed --batches 40 --directory ${runs}/trainer)
set_tests_properties(examples.22_trainer PROPERTIES FIXTURES_REQUIRED runs_gone FIXTURES_SETUP runs_trainer)
expect(examples.26_custom_loop OUTPUT "epoch 3: test accuracy [78][0-9]"
       COMMAND 26_custom_loop --strategy amp-fp16 --batches 40 --directory ${runs}/custom)
set_tests_properties(examples.26_custom_loop PROPERTIES FIXTURES_REQUIRED runs_gone FIXTURES_SETUP runs_custom)
add_test(NAME examples.22_equals_26 COMMAND ${CMAKE_COMMAND} -E compare_files
         ${runs}/trainer/checkpoints/step-000000120/model.safetensors ${runs}/custom/checkpoints/step-000000120/model.safetensors)
expect(examples.22_resumed OUTPUT "resumed after step 120 from .*step-000000120.*max_epochs is reached; test accuracy [78][0-9]"
       COMMAND 22_trainer --precision 16-mixed --batches 40 --directory ${runs}/trainer)
set_tests_properties(examples.22_equals_26 examples.22_resumed PROPERTIES FIXTURES_REQUIRED "runs_trainer;runs_custom")

set(comparison ${CMAKE_CURRENT_BINARY_DIR}/comparison.json)
expect(examples.compare_strategies OUTPUT
       "fp32 +1.00x.*amp-bf16 +1.00x.*o2-bf16 +1.50x.*full-bf16 +0.50x.*full-bf16-kahan +1.00x.*split-bf16 +1.00x.*\nreport: [^\n]*comparison.html\n$"
       COMMAND compare_strategies --model mlp --limit 2000 --epochs 1 --batch 64 --strategies
       fp32,amp-bf16,amp-fp16,o1-fp16,o2-bf16,o2-fp16,o3-fp16,full-bf16,full-bf16-sr,full-bf16-kahan,split-bf16 --json
       ${comparison} --html ${CMAKE_CURRENT_BINARY_DIR}/comparison.html)
add_test(NAME examples.compare_strategies_in_a_browser
         COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/screenshot.sh ${CMAKE_CURRENT_BINARY_DIR}/comparison.html)
set_tests_properties(examples.compare_strategies_in_a_browser PROPERTIES FIXTURES_REQUIRED comparison SKIP_RETURN_CODE 77)
set_tests_properties(examples.compare_strategies PROPERTIES FIXTURES_SETUP comparison)
add_test(NAME examples.compare_strategies_lenet COMMAND compare_strategies --limit 500 --epochs 1 --policy apex-o1
         --strategies fp32,amp-bf16,o2-fp16)

# Standard output that is full, closed, or without a reader.
foreach(program 01_tensors 10_autocast 08_master_weights 27_custom_op 07_grad_scaler_in_40_lines halftone-info)
  add_test(NAME examples.output_full_${program} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/output.sh full $<TARGET_FILE:${program}>)
endforeach()
add_test(NAME tools.output_full_halftone-lab COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/output.sh full $<TARGET_FILE:halftone-lab>
         formats --samples 4096)
foreach(case full closed unread)
  add_test(NAME examples.output_${case}_22_trainer COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/output.sh ${case} $<TARGET_FILE:22_trainer>
           --batches 5 --directory ${runs}_output/${case})
  add_test(NAME examples.output_${case}_26_custom_loop COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/output.sh ${case}
           $<TARGET_FILE:26_custom_loop> --batches 5 --epochs 1 --directory ${runs}_output/${case}_by_hand)
endforeach()

# expect_failure(name message program arguments...): the message on standard error, and exit status 1 (2 for halftone-lab, where 1 is
# an answer).
function(expect_failure name message)
  set(status 1)
  if(ARGV2 STREQUAL "halftone-lab")
    set(status 2)
  endif()
  expect(${name} EXIT ${status} MESSAGE "${message}" COMMAND ${ARGN})
endfunction()
set(program 21_train_fashion_mnist --save ${CMAKE_CURRENT_BINARY_DIR}/unused.safetensors)
expect_failure(examples.21_no_data "no file train-images-idx3-ubyte.gz in .*dataset-fashion-mnist"
               ${program} --data /nowhere)
expect_failure(examples.21_no_such_variable ".HALFTONE_DATA. no directory /nowhere. Name one that exists" ${program})
set_tests_properties(examples.21_no_such_variable PROPERTIES ENVIRONMENT HALFTONE_DATA=/nowhere)
expect_failure(examples.21_unwritable "cannot write /nowhere/weights" ${program} --save /nowhere/weights)
expect_failure(examples.21_save_to_directory "cannot write" ${program} --save ${CMAKE_CURRENT_BINARY_DIR})
expect_failure(examples.21_bad_epochs "--epochs" ${program} --epochs many)
expect_failure(examples.21_bad_batch "--batch" ${program} --batch 0)
expect_failure(examples.21_bad_lr "--lr" ${program} --lr -1)
expect_failure(examples.21_bad_optimizer "adamw" ${program} --optimizer adamax)
expect_failure(examples.21_no_weights "--load" ${program} --load /nowhere/weights)
expect_failure(examples.21_not_weights "safetensors" ${program} --load ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt)
expect_failure(examples.compare_strategies_bad_strategy "Did you mean .amp-bf16." compare_strategies --strategies amp-bf17)
expect_failure(examples.compare_strategies_bad_policy "Did you mean .apex-o1." compare_strategies --policy apex-o9)
expect_failure(examples.compare_strategies_bad_model "--model" compare_strategies --model vgg)
expect_failure(examples.compare_strategies_bad_html "cannot write /nowhere/x.html" compare_strategies --html /nowhere/x.html)
expect_failure(examples.compare_strategies_bad_json "cannot write /nowhere/x.json" compare_strategies --json /nowhere/x.json)
# Devices and pipes are not files: /dev/null must not be replaced, which would affect the whole machine. The test uses a link.
file(CREATE_LINK /dev/null ${CMAKE_CURRENT_BINARY_DIR}/null SYMBOLIC)
expect_failure(examples.compare_strategies_json_device "cannot write .*null: Is a device. Name a regular file" compare_strategies
               --json ${CMAKE_CURRENT_BINARY_DIR}/null)
expect_failure(examples.compare_strategies_json_output "cannot write /dev/stdout: Is an open file" compare_strategies --json /dev/stdout)
expect_failure(examples.21_save_device "cannot write .*null: Is a device. Name a regular file" 21_train_fashion_mnist
               --save ${CMAKE_CURRENT_BINARY_DIR}/null)
expect_failure(examples.compare_strategies_no_data "dataset-fashion-mnist" compare_strategies --data /nowhere)
expect_failure(examples.23_no_data "/nowhere" 23_finetune_resnet18 --data /nowhere --work ${finetune}/none)
expect_failure(examples.23_bad_work "cannot make the directory /proc/none" 23_finetune_resnet18 --work /proc/none)
# train of one half, val of the other
set(mixed ${CMAKE_CURRENT_BINARY_DIR}/mixed_classes)
file(MAKE_DIRECTORY ${mixed})
file(CREATE_LINK ${finetune}/first_half/train ${mixed}/train SYMBOLIC)
file(CREATE_LINK ${finetune}/second_half/val ${mixed}/val SYMBOLIC)
expect_failure(examples.23_other_classes "have different classes" 23_finetune_resnet18 --data ${mixed}
               --work ${finetune}/none)
set_tests_properties(examples.23_other_classes PROPERTIES FIXTURES_REQUIRED finetune)
expect_failure(examples.23_not_weights "safetensors" 23_finetune_resnet18 --data ${finetune}/second_half
               --weights ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt --work ${finetune}/none)
set_tests_properties(examples.23_not_weights PROPERTIES FIXTURES_REQUIRED finetune)
expect(examples.31_your_own_decoder OUTPUT "tokens of 400 kinds.*validation  loss.*--- a sample.This program is.*saved in .*tokenizer.json"
       COMMAND 31_your_own_decoder --vocabulary 400 --steps 40 --layers 1 --width 32 --context 32 --sample 20 --out ${CMAKE_CURRENT_BINARY_DIR}/own_decoder)
expect_failure(examples.31_no_text "no such file: /nowhere/text" 31_your_own_decoder --text /nowhere/text)
expect_failure(examples.24_no_text "no such file: /nowhere/text" 24_char_gpt --text /nowhere/text)
expect_failure(examples.24_bad_heads "--heads" 24_char_gpt --heads 0)
expect_failure(examples.24_bad_strategy "Did you mean .amp-bf16." 24_char_gpt --strategies amp-bf17 --steps 1)
expect_failure(examples.22_bad_precision "there is no precision named .bf16-mixd.. Did you mean .bf16-mixed" 22_trainer
               --precision bf16-mixd)
expect_failure(examples.22_bad_directory "cannot make the directory /proc/none" 22_trainer --directory /proc/none)
expect_failure(examples.26_bad_directory "--directory. cannot make the directory /proc/none" 26_custom_loop
               --directory /proc/none)
expect_failure(examples.22_other_precision "saved under amp-fp16" 22_trainer --batches 40 --directory ${runs}/trainer)
set_tests_properties(examples.22_other_precision PROPERTIES FIXTURES_REQUIRED "runs_trainer;runs_custom")
# One training at a time in a directory.
set_tests_properties(examples.22_trainer examples.22_resumed examples.22_other_precision PROPERTIES RESOURCE_LOCK runs_trainer)
# Under autocast all products are in bf16; where one layer is kept in f32, both count.
expect(bench.machine_peak OUTPUT "\"f32_gflop_per_s\":[0-9.]+,\"bf16_gflop_per_s\":[0-9.]+.*\"mebibytes\":256.0,\"copy_gb_per_s\":[0-9.]+"
       COMMAND machine_peak --threads 1 --json)
expect(bench.limit OUTPUT "\"limit_ms\":[0-9.]+,\"limit_gflop\":{\"bf16\":0.0261816[0-9]+},.*\"share_of_limit\":[0-9.]+"
       COMMAND train_step --workload mlp_tiny --strategy amp-bf16 --steps 3 --json)
expect(bench.limit_of_a_gpt OUTPUT "\"limit_gflop\":{\"bf16\":[0-9.]+}" COMMAND train_step --workload gpt_tiny --strategy amp-bf16
       --steps 1 --json)
expect(bench.limit_of_a_file OUTPUT "\"limit_gflop\":{\"f32\":0.[0-9]+,\"bf16\":0.[0-9]+}" COMMAND train_step --workload mlp_tiny
       --strategy ${CMAKE_CURRENT_SOURCE_DIR}/fixtures/last_layer_f32.json --steps 3 --json)
expect(bench.wire_error OUTPUT "bf16 +once, sum in f32 +1.6[0-9]e-03 .*bf16 +at every hop, ring +2.[0-9]+e-03 .*f8_e4m3.feedback +[0-9.]+e-0"
       COMMAND wire_error --wire own,bf16,f8_e4m3 --ranks 2,3 --elements 5000 --steps 3)
expect(bench.distributed_step OUTPUT "\"compute_ms\":[0-9.]+,\"predicted\":{\"2\":{\"ms\":[0-9.]+,\"efficiency\":0.[0-9]+}"
       COMMAND distributed_step --workload mlp_tiny --strategy fp32 --steps 2 --alpha 1e-4 --beta 1e-9 --predict 2 --json)
expect_failure(bench.no_network "needs a network: several processes, or --beta" distributed_step --predict 2)
expect(bench.untuned OUTPUT "mlp_100 .*mlp_1 .*conv_48 .*depthwise_7x7 .*gpt_48 .*lstm_100 .*limit" COMMAND train_step
       --workload untuned --strategy amp-bf16 --steps 1)
expect(bench.step_profile OUTPUT "linear +[0-9.]+ +[0-9.]+ +2 .*between operations.*the update.*all +[0-9.]+ ms a step"
       COMMAND step_profile --workload mlp_tiny --steps 3)
# A family is all of its operations; a whole name is only itself.
expect(bench.family OUTPUT "quantize_e4m3 .*quantize_mxfp8_stochastic .*quantize_mxfp4 " COMMAND op_bench --ops quantize --dtypes bf16
       --seconds 0.001 --threads 1)
expect(bench.no_family OUTPUT "^[^\n]*\nmax  [^\n]*\nmax.backward [^\n]*\n$" COMMAND op_bench --ops max --dtypes bf16 --seconds 0.001
       --threads 1)
expect(bench.bad_family EXIT 105 MESSAGE "quantise not in .*,quantize,quantize_e2m1," COMMAND op_bench --ops quantise)
expect_failure(bench.bad_strategy "there is no strategy or shipped policy named .fast." train_step --strategy fast)
expect_failure(tools.bad_format "Did you mean .mxfp8." halftone-lab formats mxfp5)
expect_failure(tools.no_policy "cannot read .*nowhere.json" halftone-lab show nowhere.json)
expect_failure(tools.unused_rule "matches nothing in this model" halftone-lab show ${policies}/deepseek_v3.json --workload mlp_tiny)
expect_failure(tools.few_samples "1 samples are too few" halftone-lab formats --samples 1)
expect_failure(tools.no_subcommand "A subcommand is required" halftone-lab)
expect_failure(tools.bad_isa "no instruction set named .avx3." halftone-info)
set_tests_properties(tools.bad_isa PROPERTIES ENVIRONMENT HALFTONE_MAX_ISA=avx3)
expect_failure(tools.bad_portable_bits "expected 0 or 1, got .yes.. Write 1 for portable bits" halftone-info)
set_tests_properties(tools.bad_portable_bits PROPERTIES ENVIRONMENT HALFTONE_PORTABLE_BITS=yes)
expect(tools.halftone-info_portable OUTPUT "cpu +portable bits\n" COMMAND halftone-info)
set_tests_properties(tools.halftone-info_portable PROPERTIES ENVIRONMENT HALFTONE_PORTABLE_BITS=1)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/broken.csv "size,rooms,age,district,price\n60,3,new,hill,200\n")
expect_failure(examples.25_predict_nothing "no such file: /nowhere/districts.txt" 25_your_own_data --predict --directory /nowhere)
expect_failure(examples.25_bad_table "line 2, column .age.: .new. is not a number" 25_your_own_data --table
               ${CMAKE_CURRENT_BINARY_DIR}/broken.csv --directory ${CMAKE_CURRENT_BINARY_DIR}/runs_flats)
