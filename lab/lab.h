// The program halftone-lab, which you can also build with a model of your own:
//
//   int main(int argc, char** argv) {
//     return halftone::lab::main(argc, argv, {.name = "mine", .about = "", .make = my_workload});
//   }
#pragma once

#include <halftone/lab/workload.h>

namespace halftone::lab {

/// The exit codes of all commands. yes: done, or equal. no: the answer is no. mistake: wrong usage
/// or input, with a message on standard error. undecided: no answer, or a signal came first.
inline constexpr int exit_yes = 0, exit_no = 1, exit_mistake = 2, exit_undecided = 3;

/// Parses and runs a subcommand; `--help` lists them. Returns the exit code for a program's main().
int main(int argc, char** argv);
/// Also adds a workload, which becomes the default of --workload.
int main(int argc, char** argv, const NamedWorkload& own);

}  // namespace halftone::lab
