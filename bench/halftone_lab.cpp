// halftone-lab: the effects of short numbers, one subcommand per question (lab/lab.h).
#include <halftone/lab/lab.h>

#include "../examples/output.h"

int main(int argc, char** argv) { return after_output(halftone::lab::main(argc, argv)); }
