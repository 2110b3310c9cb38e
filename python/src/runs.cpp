// The rows of `halftone-lab table`.
#include "arrays.h"

#include <filesystem>
#include <sstream>

#include <nanobind/stl/vector.h>

#include <halftone/core/error.h>
#include <halftone/lab/commands/table.h>

namespace halftone::python {

void add_runs(nb::module_& module) {
  module.def(
      "table",
      [](const std::vector<std::string>& paths) {
        lab::TableOptions options{.paths = {paths.begin(), paths.end()}, .json_lines = true};
        PlainText text;
        {
          const nb::gil_scoped_release released;
          lab::write_table(options, text);
        }
        return text.str();
      },
      nb::arg("paths"));
}

}  // namespace halftone::python
