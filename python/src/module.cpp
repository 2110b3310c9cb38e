// The module: errors of halftone become the exceptions of halftone/errors.py, with the same text.
#include "arrays.h"

#include <halftone/core/error.h>

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
