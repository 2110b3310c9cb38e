// The program halftone-lab, which you can also build with a model of your own:
//
//   int main(int argc, char** argv) {
//     return halftone::lab::main(argc, argv, {.name = "mine", .about = "", .make = my_workload});
//   }
#pragma once

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

/// Parses and runs a subcommand; `--help` lists them. Returns the exit code for a program's main():
/// 0, or 1 after an error, whose message goes to standard error.
int main(int argc, char** argv);
/// Also adds a workload, which becomes the default of --workload.
int main(int argc, char** argv, const NamedWorkload& own);

}  // namespace halftone::lab
