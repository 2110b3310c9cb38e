// The module: errors of halftone become the exceptions of halftone/errors.py, with the same text.
#include <filesystem>
#include <sstream>

#include <nanobind/stl/vector.h>

#include <halftone/core/error.h>
#include <halftone/lab/lab.h>

#include "arrays.h"

namespace nb = nanobind;

namespace {
void raise(const char* kind, const char* text) {
  const nb::object type = nb::module_::import_("halftone.errors").attr(kind);
  PyErr_SetString(type.ptr(), text);
}
}  // namespace

NB_MODULE(_native, module) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const halftone::ShapeError& error) {
      raise("ShapeError", error.what());
    } catch (const halftone::DTypeError& error) {
      raise("DTypeError", error.what());
    } catch (const halftone::DeviceError& error) {
      raise("DeviceError", error.what());
    } catch (const halftone::UsageError& error) {
      raise("UsageError", error.what());
    } catch (const halftone::UnsupportedError& error) {
      raise("UnsupportedError", error.what());
    } catch (const halftone::FormatError& error) {
      raise("FormatError", error.what());
    } catch (const halftone::Error& error) { raise("Error", error.what()); }
  });
  halftone::python::add_policies(module);
  halftone::python::add_numbers(module);
  halftone::python::add_runs(module);
}

// The rows of `halftone-lab table`.

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
