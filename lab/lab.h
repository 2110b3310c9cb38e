// The command halftone-lab, also for a model of your own:
//
//   int main(int argc, char** argv) {
//     return halftone::lab::main(argc, argv, {.name = "mine", .about = "", .make = my_workload});
//   }
#pragma once

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

/// Parses and runs a subcommand; `--help` lists them. What a program's main() returns: 0, or 1
/// after a mistake, whose message is on standard error.
int main(int argc, char** argv);
/// The same with a workload more, which is the default of --workload.
int main(int argc, char** argv, const NamedWorkload& own);

}  // namespace halftone::lab
