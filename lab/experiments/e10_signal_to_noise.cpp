// E10. Prints the table of `halftone-lab formats` and checks it against numbers derived without
// this library.
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/commands/formats.h>

namespace halftone::lab {
namespace e10 {

void run(Findings& found) {
  run_formats(
      {.names = {"bf16", "f16", "e4m3", "e5m2", "mxfp8", "mxfp6", "mxfp6-e3m2", "mxfp4", "nvfp4"}});
  found.exactly("exit code of formats --check", run_formats({.check = true}), 0);
}

}  // namespace e10

const Experiment found::e10{
    "E10",
    "The signal-to-noise ratio of a format is a property that can be certified: every number of "
    "every format up to 16 bits, and decibels of nine formats on Gaussian numbers.",
    e10::run};

}  // namespace halftone::lab
