// Trains 50 steps and marks steps 3 to 50 by two system calls that nothing else makes, so that
// steady_steps.sh can count what the process asks of the system for memory in between.
#include <unistd.h>

#include <cstdio>

#include "training_cases.h"

int main(int argc, char** argv) {
  using namespace halftone::testing;
  TrainingCase run = make_training_case(argc > 1 ? argv[1] : "mlp", 0);
  if (argc > 2) run.strategy = argv[2];
  double last = 0;
  train_case(run, {.prefetch = 0}, [&](int64_t step, double loss) {
    last = loss;
    if (step == 2) (void)!access("/halftone-marker-begin", F_OK);
    if (step == training_steps) (void)!access("/halftone-marker-end", F_OK);
  });
  std::printf("loss %.6f\n", last);
}
