# Mistakes that the compiler can find fail with a line that says what to write. COMPILER, INCLUDE and WORK come from the command
# line.
cmake_minimum_required(VERSION 3.25)
set(head "#include <halftone/nn/conv.h>\n#include <halftone/nn/layers.h>\n#include <halftone/nn/rnn.h>\n#include <halftone/optim/optimizers.h>\nnamespace ht = halftone;\n\
struct Own : ht::nn::Module { void describe(ht::nn::Fields&) override {} };\nint main() {\n  ht::nn::Linear layer(3, 4, false);\n")
function(mistake name line wanted)
  file(WRITE ${WORK}/mistake_${name}.cpp "${head}  ${line}\n}\n")
  execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -Werror=unused-result -I${INCLUDE} ${WORK}/mistake_${name}.cpp
                  RESULT_VARIABLE failure ERROR_VARIABLE text OUTPUT_QUIET)
  if(failure EQUAL 0)
    message(FATAL_ERROR "${line} compiles")
  endif()
  if(NOT text MATCHES "(error: [^\n]*|= 0;  // )${wanted}")  # or the remedy next to the function that must be overridden
    message(FATAL_ERROR "${line} fails without '${wanted}':\n${text}")
  endif()
endfunction()
mistake(stride "ht::nn::Conv2d conv(1, 2, 3, 1, 1);" "name what follows the kernel: Conv2d")
mistake(module "ht::nn::Sequential model(ht::nn::Linear(2, 3), Own());" "derive it from nn::Layer")
mistake(option "ht::optim::AdamWOptions options{.learning_rate = 1e-3};" "has no non-static data member named [^ ]*learning_rate")
mistake(scope "ht::NoGrad();" "nodiscard")
mistake(memory_scope "ht::MemoryScope(ht::MemoryUse::input);" "nodiscard")
mistake(pool "ht::nn::MaxPool2d pool(2, 2);" "name what follows the kernel: MaxPool2d")
mistake(mean_pool "ht::nn::AvgPool2d pool(2, 2, 1);" "name what follows the kernel: AvgPool2d")
mistake(rows_pool "ht::nn::MaxPool1d pool(2, 2);" "name what follows the kernel: MaxPool1d")
mistake(recurrent "ht::nn::Sequential model(ht::nn::Lstm(2, 3), ht::nn::Linear(3, 1));" "write a Module that calls lstm.x..y")
mistake(lambda "ht::nn::Sequential model([](const ht::Tensor& x) { return x; });" "Sequential holds Layers: derive it from nn::Layer")
mistake(describe "struct M : ht::nn::Layer { ht::Tensor forward(const ht::Tensor& x) const override { return x; } } model;" "override it: . field")
mistake(forward "struct M : ht::nn::StatelessLayer { ht::Tensor forward(const ht::Tensor& x) { return x; } } model;" "override it, as const")
mistake(sums "struct P : ht::UserOp { static constexpr ht::OpInfo info{\"p\", ht::CastClass::low_precision}; ht::Tensor forward(const ht::Tensor& x) { return x; } }; ht::apply(P{}, ht::Tensor());" "says in its OpInfo which dimensions")
