// Trains 50 steps and marks steps 3 to 50 by two system calls that nothing else makes, so that
// steady_steps.sh can count the process's requests for memory between them. That script gives the
// heap a large reserve, which could hide many new small blocks. So this program compares the bytes
// allocated by malloc after step 10 and after step 50. The script also turns off malloc's caches
// per thread, whose free blocks would count as allocated.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>

#include "training_cases.h"

namespace {

/// A block is up to 16 bytes larger than requested if the rest is too small for another block,
/// so the sum varies by a few times 16. One extra block in each of 40 steps would be 40 * 32
/// bytes.
constexpr std::size_t allowed_growth = 40 * 32 / 2;

/// Bytes in blocks of the heap, and in those that have their own mapping.
std::size_t bytes_given_out() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace halftone::test;
  TrainingCase run = make_training_case(argc > 1 ? argv[1] : "mlp", 0);
  if (argc > 2) run.strategy = argv[2];
  double last = 0;
  std::size_t early = 0, late = 0;
  train_case(run, {.prefetch = 0}, [&](int64_t step, double loss) {
    last = loss;
    if (step == 2) (void)!access("/halftone-marker-begin", F_OK);
    if (step == 10) early = bytes_given_out();
    if (step != training_steps) return;
    late = bytes_given_out();
    (void)!access("/halftone-marker-end", F_OK);
  });
  std::printf("loss %.6f, %zu bytes given out after step 10, %zu after step 50\n", last, early,
              late);
  if (late < early + allowed_growth) return 0;
  std::printf("the heap grew by %zu bytes in 40 steps\n", late - early);
  return 1;
}
