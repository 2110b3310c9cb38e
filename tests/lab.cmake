# Experiments (lab/) that take less than 20 s; each checks itself and exits with 1 if it does not find its claim. One thread: their tensors
# are small, and waiting threads cost more than they save.
foreach(experiment E1 E3 E5 E7 E8 E9 E10 E11 E12 E15 E17 E18 E26 E27 E28)
  expect(lab.experiment_${experiment} OUTPUT "${experiment} passes: ([0-9]+) of ([0-9]+) checks" COMMAND halftone-lab experiment ${experiment})
  set_tests_properties(lab.experiment_${experiment} PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1)
endforeach()
# A run with portable bits is recorded as one, and repeats to the bit under another instruction set and number of threads.
set(portable_runs ${CMAKE_CURRENT_BINARY_DIR}/lab_portable_runs)
add_test(NAME lab.clean_portable_runs COMMAND ${CMAKE_COMMAND} -E rm -rf ${portable_runs})
set_tests_properties(lab.clean_portable_runs PROPERTIES FIXTURES_SETUP lab_portable_place)
expect(lab.portable_run OUTPUT "amp-bf16" COMMAND halftone-lab run amp-bf16 --workload student_teacher --steps 20 --portable-bits --out ${portable_runs})
set_tests_properties(lab.portable_run PROPERTIES FIXTURES_REQUIRED lab_portable_place FIXTURES_SETUP lab_portable_run)
expect(lab.portable_rerun OUTPUT "weights: ([0-9a-f]+) there, [0-9a-f]+ here, the same\n" COMMAND halftone-lab rerun ${portable_runs}/student_teacher-amp-bf16-0 --check --threads 3)
set_tests_properties(lab.portable_rerun PROPERTIES FIXTURES_REQUIRED lab_portable_run ENVIRONMENT HALFTONE_MAX_ISA=avx2)
expect(lab.portable_run_without EXIT 2 MESSAGE "the run in .*student_teacher-amp-bf16-0 has portable bits. Choose another folder"
       COMMAND halftone-lab run amp-bf16 --workload student_teacher --steps 20 --out ${portable_runs})
set_tests_properties(lab.portable_run_without PROPERTIES FIXTURES_REQUIRED lab_portable_run)
# Hashes of all machines also hold under every cap of instruction sets.
foreach(isa avx2 baseline)
  expect(lab.experiment_E17_${isa} OUTPUT "E17 passes" COMMAND halftone-lab experiment E17)
  set_tests_properties(lab.experiment_E17_${isa} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1;HALFTONE_MAX_ISA=${isa}")
endforeach()
expect(lab.unknown_experiment EXIT 2 MESSAGE "no experiment named .E33.. Did you mean .E3." COMMAND halftone-lab experiment E33)

# The commands on a small workload.
set(telemetry ${CMAKE_CURRENT_BINARY_DIR}/lab_runs)
add_test(NAME lab.clean_runs COMMAND ${CMAKE_COMMAND} -E rm -rf ${telemetry})
set_tests_properties(lab.clean_runs PROPERTIES FIXTURES_SETUP lab_runs)
expect(lab.run OUTPUT "updates lost.*amp-bf16 .* dB .*full-bf16 .* [1-9][0-9.]* %" MESSAGE "amp-bf16, seed 1: loss"
       COMMAND halftone-lab run amp-bf16 full-bf16 --workload student_teacher --steps 20 --seeds 0,1 --probe 10 --out ${telemetry})
expect(lab.run_of_other_steps EXIT 2 MESSAGE "there is a run of other settings in .*student_teacher-amp-bf16-0: steps: 20 there, 5 here"
       COMMAND halftone-lab run amp-bf16 --workload student_teacher --steps 5 --out ${telemetry})
expect(lab.run_with_other_telemetry EXIT 2 MESSAGE "there is a run of other settings in .*student_teacher-amp-bf16-0: probe: 10 there, 5 here"
       COMMAND halftone-lab run amp-bf16 --workload student_teacher --steps 20 --probe 5 --out ${telemetry})
expect(lab.run_again OUTPUT "policy +loss.*amp-bf16 .*full-bf16 " MESSAGE "full-bf16, seed 1: already trained, loss"
       COMMAND halftone-lab run amp-bf16 full-bf16 --workload student_teacher --steps 20 --seeds 0,1 --probe 10 --out ${telemetry})
set_tests_properties(lab.run PROPERTIES FIXTURES_REQUIRED lab_runs FIXTURES_SETUP lab_first_run)
set_tests_properties(lab.run_of_other_steps lab.run_with_other_telemetry lab.run_again PROPERTIES FIXTURES_REQUIRED lab_first_run)
# The folders of these runs as a page, as rows, and in a browser if there is one.
set(page ${CMAKE_CURRENT_BINARY_DIR}/lab_report.html)
expect(lab.report OUTPUT "^report: [^\n]*lab_report.html\n$" COMMAND halftone-lab report ${telemetry} -o ${page})
expect(lab.table OUTPUT "run,policy,workload,seed,step,site,role,input,statistic,value.*full-bf16,student_teacher,1,10,0.weight,update,0,lost_share,0[.][0-9]"
       COMMAND halftone-lab table ${telemetry} --csv)
expect(lab.table_jsonl OUTPUT "{.run.:.student_teacher-amp-bf16-0.,.policy.:.amp-bf16.,.workload.:.student_teacher.,.seed.:0," COMMAND halftone-lab table ${telemetry} --jsonl)
expect(lab.figure OUTPUT "figure: [^\n]*forest.pdf\nfigure: [^\n]*forest.csv\n$" COMMAND halftone-lab figure forest ${telemetry} -o ${CMAKE_CURRENT_BINARY_DIR}/forest.pdf
       --width 85 --dark)
expect(lab.figure_nothing EXIT 2 MESSAGE ".figure. these runs have no data for switches" COMMAND halftone-lab figure switches ${telemetry} -o x.svg)
expect(lab.table_top OUTPUT "value\n[^\n]*would_underflow_f16,[^\n]*\n[^\n]*would_underflow_f16,[^\n]*\n$"
       COMMAND halftone-lab table ${telemetry} --top 2 --statistic would_underflow_f16)
set_tests_properties(lab.figure lab.figure_nothing lab.table_top PROPERTIES FIXTURES_REQUIRED lab_first_run)
set_tests_properties(lab.report lab.table lab.table_jsonl PROPERTIES FIXTURES_REQUIRED lab_first_run)
set_tests_properties(lab.report PROPERTIES FIXTURES_SETUP lab_page)
add_test(NAME lab.report_in_a_browser COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/screenshot.sh ${page})
set_tests_properties(lab.report_in_a_browser PROPERTIES FIXTURES_REQUIRED lab_page SKIP_RETURN_CODE 77)
expect(lab.report_nothing EXIT 2 MESSAGE ".report. /nowhere: it has no runs. Give folders" COMMAND halftone-lab report /nowhere)
expect(lab.report_nowhere EXIT 2 MESSAGE "cannot write /nowhere/x.html" COMMAND halftone-lab report ${telemetry} -o /nowhere/x.html)
expect(lab.table_nothing EXIT 2 MESSAGE ".table. /nowhere: it has no runs" COMMAND halftone-lab table /nowhere)
expect(lab.compare_json OUTPUT "nothing deviates" COMMAND halftone-lab compare amp-bf16 --workload student_teacher --json ${telemetry}_compare.json)
set_tests_properties(lab.compare_json PROPERTIES FIXTURES_SETUP lab_comparison)
expect(lab.report_of_a_comparison OUTPUT "report: " COMMAND halftone-lab report ${telemetry}_compare.json -o ${page}.2.html)
set_tests_properties(lab.report_of_a_comparison PROPERTIES FIXTURES_REQUIRED lab_comparison)
expect(lab.compare OUTPUT "0/linear.0 +input .*nothing deviates" COMMAND halftone-lab compare amp-bf16 --workload student_teacher)
expect(lab.explain OUTPUT "step 1 skipped: .*a loss scale of .* would do"
       COMMAND halftone-lab explain amp-fp16 --workload student_teacher --scale 1e15)
# Recipes for other stacks.
foreach(target "te TransformerEngine 23" "torchao torchao 22" "modelopt Model-Optimizer 25")
  separate_arguments(target)
  list(GET target 0 to)
  add_test(NAME lab.export_${to} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/export.sh $<TARGET_FILE:halftone-lab>
           ${PROJECT_SOURCE_DIR}/amp/policies ${CMAKE_CURRENT_BINARY_DIR}/lab_export_${to} ${target})
endforeach()
expect(lab.export_nothing EXIT 1 OUTPUT "not in TransformerEngine: .*c_attn/linear.0 input: it has no format int8, blocks of 32x32 with f32 scales"
       COMMAND halftone-lab export jetfire_int8 --workload gpt_tiny -o ${CMAKE_CURRENT_BINARY_DIR}/lab_export_none)
expect(lab.export_differs OUTPUT "num_bits.: .2, 1., .*differs: it rounds the scales of MX up.*differs: backward is in high precision"
       COMMAND halftone-lab export mxfp4 --workload gpt_tiny --to modelopt -o ${CMAKE_CURRENT_BINARY_DIR}/lab_export_differs)
expect(lab.export_elsewhere EXIT 2 MESSAGE "--to is .nemo.. Choose te" COMMAND halftone-lab export nvfp4 --workload gpt_tiny --to nemo -o x)
# With a wire, one of the laboratory's own loops is one of several processes, alone.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/wired.json
     "{\"halftone_policy\": 1, \"name\": \"wired\", \"extends\": \"amp-fp16\", \"communication\": {\"gradients\": \"f8_e4m3-sr\"}}")
expect(lab.explain_wired OUTPUT "step 1 skipped: .*a loss scale of .* would do"
       COMMAND halftone-lab explain ${CMAKE_CURRENT_BINARY_DIR}/wired.json --workload student_teacher --scale 1e15)
expect(lab.explain_wired_nothing OUTPUT "no step of 3 was skipped"
       COMMAND halftone-lab explain ${CMAKE_CURRENT_BINARY_DIR}/wired.json --workload student_teacher --steps 3)
expect(lab.explain_nothing OUTPUT "no step of 3 was skipped" COMMAND halftone-lab explain fp32 --workload student_teacher --steps 3)
expect(lab.unknown_workload EXIT 2 MESSAGE "no workload named .gpt_tinny.. Did you mean .gpt_tiny." COMMAND halftone-lab show fp32 --workload gpt_tinny)
expect(lab.run_without_files OUTPUT "policy +loss.*fp32 " COMMAND halftone-lab run fp32 --workload student_teacher --steps 3)
expect(lab.run_same_names OUTPUT "against fp32-[0-9a-f]+, 95 %.*\n  fp32-[0-9a-f]+ .*\n  fp32-[0-9a-f]+ " COMMAND halftone-lab run fp32 ${PROJECT_SOURCE_DIR}/amp/policies/fp32.json
       --workload student_teacher --steps 3)
expect(lab.run_negative_seed EXIT 2 MESSAGE "a seed is a whole number from 0 to 2.64 - 1, got .-1" COMMAND halftone-lab run fp32 --workload student_teacher --steps 3
       --seeds=0,-1)
expect(lab.compare_negative_seed EXIT 2 MESSAGE "a seed is a whole number from 0 to 2.64 - 1, got -1" COMMAND halftone-lab compare fp32 --seed -1)
expect(lab.run_other_model OUTPUT "policy +loss" MESSAGE "note: qpytorch-low8 is for lenet and mlp, and gpt_tiny trains gpt"
       COMMAND halftone-lab run ${PROJECT_SOURCE_DIR}/amp/policies/qpytorch_low8.json --workload gpt_tiny --steps 1)
expect(lab.show_diff_json OUTPUT "\"before\".*\"from\": \"current\".*\"after\".*\"from\": \"history\"" COMMAND halftone-lab show
       ${PROJECT_SOURCE_DIR}/amp/policies/te_current.json --diff ${PROJECT_SOURCE_DIR}/amp/policies/te_delayed_hybrid.json --workload mlp_tiny --json -)
expect(lab.run_same_seeds EXIT 2 MESSAGE "has a seed twice" COMMAND halftone-lab run fp32 --workload student_teacher --steps 3 --seeds 1,1)

# Sensitivity and search; the result is a policy that every command accepts.
expect(lab.sensitivity OUTPUT ".the base.*linear -> mxfp8 .* %" COMMAND halftone-lab sensitivity fp32 --to mxfp8 --workload student_teacher
       --batches 2 --warm-up 2)
expect(lab.sensitivity_hessian OUTPUT "Hessian.s score +95 %.*2 -> mxfp8 .* to .*2 of 2 rules round parameters; Spearman.s rank correlation"
       COMMAND halftone-lab sensitivity fp32 --to mxfp8 --space modules --by hessian --probes 4 --workload student_teacher --batches 2 --warm-up 2)
expect(lab.sensitivity_by EXIT 2 MESSAGE "no ranking named .hesian.. Did you mean .hessian." COMMAND halftone-lab sensitivity fp32 --by hesian)
expect(lab.sensitivity_two EXIT 2 MESSAGE "two predictions. Give one" COMMAND halftone-lab sensitivity fp32 --by hessian --one-pass --menu mxfp8)
expect(lab.search OUTPUT "chosen: linear -> mxfp8.*policy [0-9a-f]+: .*policy +loss.*found " COMMAND halftone-lab search fp32 --to mxfp8
       --objective bits --budget 0.5 --workload student_teacher --batches 2 --warm-up 2 --seeds 0,1 --steps 3 --out ${telemetry}_found/found.json)
expect(lab.search_record OUTPUT "wrote|report" COMMAND halftone-lab report ${telemetry}_found/found.search.json -o ${telemetry}_found.html)
expect(lab.search_found OUTPUT "0/linear.0 .*input=" COMMAND halftone-lab show ${telemetry}_found/found.json --workload student_teacher)
set_tests_properties(lab.search PROPERTIES FIXTURES_SETUP lab_found)
set_tests_properties(lab.search_found lab.search_record PROPERTIES FIXTURES_REQUIRED lab_found)
expect(lab.search_nothing EXIT 2 MESSAGE "no rule of the space .ops. to low changes amp-bf16" COMMAND halftone-lab sensitivity amp-bf16
       --workload student_teacher --batches 1 --warm-up 0)
expect(lab.search_no_json EXIT 2 MESSAGE "found.txt does not end in .json" COMMAND halftone-lab search fp32 --out found.txt)
expect(lab.search_in_the_way EXIT 2 MESSAGE "mxfp8.json exists, and no earlier search made it" COMMAND halftone-lab search fp32
       --out ${PROJECT_SOURCE_DIR}/amp/policies/mxfp8.json)
expect(lab.one_pass OUTPUT "2 modules, 2 formats, .*4 rules; Spearman.s rank correlation with one trial each: (0[.][89]|1[.]0)" COMMAND halftone-lab
       sensitivity fp32 --one-pass --check --menu mxfp8,mxfp4 --workload student_teacher --batches 2 --warm-up 2)
expect(lab.menu_search OUTPUT "6 +5.05 .*1 mxfp8, 1 mxfp4 .*menu-6bits.json.*for all +4.25" COMMAND halftone-lab search fp32 --menu bf16,mxfp8,mxfp4
       --bits 6 --workload student_teacher --batches 2 --warm-up 2 --out ${telemetry}_menu/menu.json)
expect(lab.menu_found OUTPUT "0/linear.0 .*input=e2m1.*2/linear.0 .*input=e4m3" COMMAND halftone-lab show ${telemetry}_menu/menu-6bits.json
       --workload student_teacher)
set_tests_properties(lab.menu_search PROPERTIES FIXTURES_SETUP lab_menu)
set_tests_properties(lab.menu_found PROPERTIES FIXTURES_REQUIRED lab_menu)
expect(lab.menu_no_bits EXIT 2 MESSAGE "there is a menu, but no budget. Add --bits" COMMAND halftone-lab search fp32 --menu mxfp8,mxfp4)
expect(lab.menu_few_bits EXIT 2 MESSAGE "the budget is 4 bits, and the menu.s fewest are 4.25" COMMAND halftone-lab search fp32 --menu mxfp8,mxfp4
       --bits 4 --workload student_teacher --batches 1 --warm-up 0)
expect(lab.menu_twice EXIT 2 MESSAGE "mxfp8. is on the menu twice" COMMAND halftone-lab search fp32 --menu mxfp8,mxfp8 --bits 8)
expect(lab.one_pass_no_menu EXIT 2 MESSAGE ".sensitivity. there is no menu. Add --menu" COMMAND halftone-lab sensitivity fp32 --one-pass)
expect(lab.check_alone EXIT 2 MESSAGE "Add --one-pass" COMMAND halftone-lab sensitivity fp32 --check --menu mxfp8)
expect(lab.search_no_out EXIT 2 MESSAGE "no file for the policy. Add --out" COMMAND halftone-lab search fp32 --seeds 1)

# A sweep: 4 cells of 2 seeds. A second sweep has nothing to do; other steps are another sweep.
add_test(NAME lab.clean_sweep COMMAND ${CMAKE_COMMAND} -E rm -rf ${telemetry}_sweep ${telemetry}_bad_sweep ${telemetry}_failing_sweep)
set_tests_properties(lab.clean_sweep PROPERTIES FIXTURES_SETUP lab_sweep)
set(sweep halftone-lab sweep ${PROJECT_SOURCE_DIR}/amp/policies/te_delayed_hybrid.json --workload student_teacher --seeds 0..1 --jobs 2
    --axis lr=0.001,0.003 --axis quantizers.forward.scale.history=16,64 --out ${telemetry}_sweep)
expect(lab.sweep OUTPUT "te-delayed-hybrid-lr=0.001-history=16 .*te-delayed-hybrid-lr=0.003-history=64 " MESSAGE ".8/8. "
       COMMAND ${sweep} --steps 5)
expect(lab.sweep_again OUTPUT "te-delayed-hybrid-lr=0.003-history=64 " MESSAGE "8 of 8 runs are already done" COMMAND ${sweep} --steps 5)
expect(lab.sweep_other_steps EXIT 2 MESSAGE "was begun with .*.steps.:5,.* and not .*.steps.:6," COMMAND ${sweep} --steps 6)
set_tests_properties(lab.sweep PROPERTIES FIXTURES_REQUIRED lab_sweep FIXTURES_SETUP lab_swept)
set_tests_properties(lab.sweep_again lab.sweep_other_steps PROPERTIES FIXTURES_REQUIRED lab_swept
                     RESOURCE_LOCK lab_swept)  # one sweep at a time in a folder
add_test(NAME lab.sweep_killed COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/sweep_killed.sh $<TARGET_FILE:halftone-lab>)
expect(lab.sweep_bad_field EXIT 2 MESSAGE "no entry .quantizer.. Did you mean .quantizers" COMMAND halftone-lab sweep
       ${PROJECT_SOURCE_DIR}/amp/policies/mxfp8.json --axis quantizer.mx.rounding=nearest --out ${telemetry}_bad_sweep)
expect(lab.sweep_failing_cell EXIT 2 MESSAGE "path=nosuch. rule 0 .*matches nothing in this model" COMMAND halftone-lab sweep
       ${PROJECT_SOURCE_DIR}/amp/policies/mxfp8.json --workload student_teacher --steps 3 --axis rules.0.match.path=nosuch,** --out ${telemetry}_failing_sweep)
expect(lab.sweep_bad_option EXIT 2 MESSAGE "^.sweep. --lr: expected a finite number above 0, got -1. Change this value.\n$" COMMAND halftone-lab sweep fp32
       --workload student_teacher --steps 3 --axis lr=0.001,-1 --out ${telemetry}_bad_sweep)
set_tests_properties(lab.sweep_bad_field lab.sweep_failing_cell PROPERTIES FIXTURES_REQUIRED lab_sweep)

# E18's formula compiled with flags that nothing else here uses.
add_test(NAME lab.compiled_rounding COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CXX_COMPILER} -DINCLUDE=${PROJECT_BINARY_DIR}/include
         -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/compiled_rounding.cpp -DDIRECTORY=${CMAKE_CURRENT_BINARY_DIR}/compiled_rounding
         -P ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/compiled_rounding.cmake)

# A run again, from its folder: the same weights. Other weights in the summary are a difference, and an exit code.
set(tampered ${telemetry}/student_teacher-amp-bf16-1)
expect(lab.rerun OUTPUT "20 steps of student_teacher, seed 0.*weights: .* here, the same"
       COMMAND halftone-lab rerun ${telemetry}/student_teacher-amp-bf16-0 --check)
add_test(NAME lab.tamper COMMAND sed -i -e "s/\"weights_hash\": \"[0-9a-f]*/\"weights_hash\": \"0123456789abcdef/"
         -e "s/\"threads\": /&9/" ${tampered}/summary.json)
expect(lab.rerun_of_others EXIT 1 OUTPUT "differs: threads: 9.* there, .*weights: 0123456789abcdef there, [0-9a-f]+ here, others"
       COMMAND halftone-lab rerun ${tampered} --check)
expect(lab.rerun_without_check OUTPUT "0123456789abcdef there, [0-9a-f]+ here, others" COMMAND halftone-lab rerun ${tampered})
expect(lab.rerun_of_nothing EXIT 2 MESSAGE "^.rerun. .*summary.json: the file is missing. Give the folder of a run" COMMAND halftone-lab rerun ${telemetry})
set_tests_properties(lab.rerun lab.rerun_of_nothing PROPERTIES FIXTURES_REQUIRED lab_first_run)
set_tests_properties(lab.tamper PROPERTIES FIXTURES_REQUIRED lab_first_run FIXTURES_SETUP lab_tampered)
set_tests_properties(lab.rerun_of_others lab.rerun_without_check PROPERTIES FIXTURES_REQUIRED lab_tampered)
expect(lab.run_from OUTPUT "policy +loss.*full-bf16 " COMMAND halftone-lab run full-bf16 --workload student_teacher --steps 3 --schedule constant
       --from ${telemetry}/student_teacher-amp-bf16-0)
set_tests_properties(lab.run_from PROPERTIES FIXTURES_REQUIRED lab_first_run)
expect(lab.run_unknown_optimizer EXIT 2 MESSAGE "no optimizer named .adamv.. Did you mean .adamw." COMMAND halftone-lab run fp32
       --workload student_teacher --steps 3 --optimizer adamv)
expect(lab.run_diverges OUTPUT "fp32 +nan " MESSAGE "fp32, seed 0: loss nan," COMMAND halftone-lab run fp32 --workload student_teacher --steps 3
       --lr 1e30)
expect(lab.run_too_many_steps EXIT 2 MESSAGE "--steps: expected a whole number from 1 to 1099511627776, got 99999999999999999999" COMMAND halftone-lab run fp32
       --workload student_teacher --steps 99999999999999999999)
add_test(NAME lab.interrupted COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/interrupted.sh $<TARGET_FILE:halftone-lab>)
set_tests_properties(lab.interrupted PROPERTIES LABELS long)
expect(lab.show_why OUTPUT "why, by what operations ask for.*  linear +low_precision +most of the time" COMMAND halftone-lab show amp-bf16)

# The pictures of docs/amp_from_the_inside.md, from a smaller training.
foreach(picture exponents loss-scale bytes updates staircase)
  set(drawn ${CMAKE_CURRENT_BINARY_DIR}/${picture}.svg)
  expect(lab.picture_${picture} OUTPUT "wrote .*${picture}.svg" COMMAND halftone-lab picture ${picture} --workload mlp_tiny -o ${drawn})
  add_test(NAME lab.picture_${picture}_drawn COMMAND grep -c "<title>" ${drawn})  # of every mark
  set_tests_properties(lab.picture_${picture} PROPERTIES FIXTURES_SETUP picture_${picture})
  set_tests_properties(lab.picture_${picture}_drawn PROPERTIES FIXTURES_REQUIRED picture_${picture})
endforeach()
expect(lab.picture_unknown EXIT 2 MESSAGE "exponent.*Did you mean \"exponents\"" COMMAND halftone-lab picture exponent -o x.svg)
expect(lab.picture_nowhere EXIT 2 MESSAGE "no-such-folder" COMMAND halftone-lab picture bytes -o no-such-folder/x.svg)

# Vectors for other projects: the committed ones, and mistakes.
add_test(NAME lab.vectors_committed COMMAND ${CMAKE_COMMAND} -DLAB=$<TARGET_FILE:halftone-lab> -DSOURCE=${PROJECT_SOURCE_DIR}/core/formats/vectors
         -DDIRECTORY=${CMAKE_CURRENT_BINARY_DIR}/lab_vectors -P ${CMAKE_CURRENT_SOURCE_DIR}/lab/scripts/vectors.cmake)
expect(lab.vectors_jsonl OUTPUT "wrote .*/e3m4.jsonl" COMMAND halftone-lab vectors e3m4 --rounding up --out ${CMAKE_CURRENT_BINARY_DIR}/e3m4.jsonl)
expect(lab.vectors_unknown_format EXIT 2 MESSAGE "no format named .e4m33.*Known: f32 " COMMAND halftone-lab vectors e4m33 --out x.jsonl)
expect(lab.vectors_unknown_quantizer EXIT 2 MESSAGE "no quantizer named .mxfp5.*Known: mxfp8, " COMMAND halftone-lab vectors --quantizer mxfp5 --out x.jsonl)
expect(lab.vectors_unknown_rounding EXIT 2 MESSAGE "no rounding named .nearest.*Known: nearest_even, " COMMAND halftone-lab vectors e4m3
       --rounding nearest --out x.jsonl)
expect(lab.vectors_no_out EXIT 2 MESSAGE "no file. Add --out" COMMAND halftone-lab vectors e4m3)
expect(lab.vectors_other_file EXIT 2 MESSAGE "must end in .safetensors or .jsonl" COMMAND halftone-lab vectors e4m3 --out x.txt)
expect(lab.vectors_exhaustive_long EXIT 2 MESSAGE "at most 8 bits, and bf16 has 16" COMMAND halftone-lab vectors bf16 --exhaustive)

# The gate: each answer, runs that are read again, and settings that differ.
add_test(NAME lab.clean_gate COMMAND ${CMAKE_COMMAND} -E rm -rf ${telemetry}_gate ${telemetry}_traces)
set_tests_properties(lab.clean_gate PROPERTIES FIXTURES_SETUP lab_gate)
set(gate halftone-lab gate fp32 --reference fp32 --workload student_teacher --first 2 --out ${telemetry}_gate)
expect(lab.gate OUTPUT "^workload student_teacher: .*\nequivalent: .0[.]00 % .*, 2 paired seeds" COMMAND ${gate} --steps 5)
expect(lab.gate_json OUTPUT "\"verdict\": \"equivalent\".*\"pairs\": 3" COMMAND ${gate} --steps 5 --pairs 3 --json -)
expect(lab.gate_other_steps EXIT 2 MESSAGE "was begun with .*.steps.:5,.* and not .*.steps.:6,.*Choose another --out" COMMAND ${gate} --steps 6)
expect(lab.gate_worse EXIT 1 OUTPUT "worse by more than 0.5 %: " COMMAND halftone-lab gate mxfp4 --reference fp32 --workload student_teacher
       --steps 100 --first 4)
expect(lab.gate_undecided EXIT 3 OUTPUT "undecided: .*, 2 paired seeds" COMMAND halftone-lab gate amp-bf16 --reference fp32 --workload
       student_teacher --steps 5 --pairs 2 --within 0.0001%)
expect(lab.gate_bad_bound EXIT 2 MESSAGE "the bound is .0.. Give a percentage above 0" COMMAND halftone-lab gate fp32 --within 0)
expect(lab.gate_noise EXIT 0 MESSAGE "note: mlp_tiny trains on one batch of noise" COMMAND halftone-lab gate fp32 --reference fp32 --workload
       mlp_tiny --steps 2 --first 2)
set_tests_properties(lab.gate PROPERTIES FIXTURES_REQUIRED lab_gate FIXTURES_SETUP lab_gated)
set_tests_properties(lab.gate_json lab.gate_other_steps PROPERTIES FIXTURES_REQUIRED lab_gated)

# Traces: a run twice is equal, another policy is not, and a run without a trace has none to compare.
foreach(policy fp32 split-bf16)
  expect(lab.trace_${policy} OUTPUT "${policy} " COMMAND halftone-lab run ${policy} --workload student_teacher --steps 4 --trace 2 --out
         ${telemetry}_traces)
  set_tests_properties(lab.trace_${policy} PROPERTIES FIXTURES_REQUIRED lab_gate FIXTURES_SETUP lab_traced)
endforeach()
set(traced ${telemetry}_traces/student_teacher-fp32-0)
expect(lab.diff_equal OUTPUT "^equal: [1-9][0-9]* tensors\n$" COMMAND halftone-lab diff ${traced} ${traced})
expect(lab.diff_others EXIT 1 OUTPUT "differs: policy_hash.*first difference: .*step 0, 0/linear.0, " COMMAND halftone-lab diff ${traced}
       ${telemetry}_traces/student_teacher-split-bf16-0)
expect(lab.diff_nothing EXIT 2 MESSAGE "/nowhere has no trace.jsonl. Give the folder of a run" COMMAND halftone-lab diff ${traced} /nowhere)
expect(lab.trace_and_probe EXIT 2 MESSAGE "A trace needs --out, and no probe" COMMAND halftone-lab run fp32 --workload student_teacher --steps 4
       --trace 2 --probe 2 --out ${telemetry}_traces)
set_tests_properties(lab.diff_equal lab.diff_others lab.diff_nothing PROPERTIES FIXTURES_REQUIRED lab_traced)

# Commands alike: names, versions, ranges of seeds, a search without a result.
expect(lab.misspelt EXIT 2 MESSAGE "no command named .shwo.. Did you mean .show." COMMAND halftone-lab shwo)
expect(lab.version OUTPUT "^halftone-lab [0-9]+[.][0-9]+[.][0-9]+\n$" COMMAND halftone-lab --version)
expect(lab.misspelt_policy EXIT 2 MESSAGE "no strategy or shipped policy named .te_curent.. Did you mean .te_current." COMMAND halftone-lab show
       te_curent)
expect(lab.seed_ranges MESSAGE "seed 0: loss.*seed 1: loss.*seed 3: loss" COMMAND halftone-lab run fp32 --workload student_teacher --steps 2
       --seeds 0..1,3)
expect(lab.search_none EXIT 1 OUTPUT "chosen: none" COMMAND halftone-lab search fp32 --to e2m1 --objective bits --budget 1e-9 --workload
       student_teacher --batches 1 --warm-up 0 --seeds 0 --out ${telemetry}_none/none.json)
