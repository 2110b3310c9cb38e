// Finds the kernels, functions and variables of a PTX file, without reading their instructions.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <utility>

#include "program.h"

namespace halftone::ptx {

namespace {

constexpr auto npos = std::string_view::npos;

void blank_comments(std::string& text) {
  for (std::size_t i = text.find('/'); i != std::string::npos; i = text.find('/', i + 1)) {
    std::size_t end = i;
    if (text.compare(i, 2, "//") == 0) end = text.find('\n', i);
    if (text.compare(i, 2, "/*") == 0) end = text.find("*/", i) + 2;
    std::fill(text.begin() + std::ptrdiff_t(i),
              text.begin() + std::ptrdiff_t(std::min(end, text.size())), ' ');
  }
}

void read_parameters(Kernel& kernel, std::string_view header) {
  const std::size_t open = header.find('('), close = header.rfind(')');
  if (open == npos) return;
  for (const std::string_view one : split(header.substr(open + 1, close - open - 1))) {
    const Declaration d = declaration(one);
    const uint32_t offset = (kernel.parameter_bytes + d.alignment - 1) / d.alignment * d.alignment;
    kernel.parameters.push_back({std::string(d.name), offset, d.bytes});
    kernel.parameter_bytes = offset + d.bytes;
  }
}

void add_kernel(Module& module, std::size_t entry, std::size_t body) {
  auto kernel = std::make_unique<Kernel>();
  const std::string_view text = module.text, name = name_after(text, entry);
  kernel->name = name, kernel->module = &module;
  kernel->header = std::size_t(name.data() + name.size() - text.data()), kernel->body = body;
  const std::string_view header = text.substr(kernel->header, body - kernel->header);
  read_parameters(*kernel, header);
  if (const std::size_t most = header.find(".maxntid"); most != npos) {
    kernel->most_threads = 1;
    const std::size_t end = std::min(header.find('\n', most), header.size());
    for (const std::string_view size : split(header.substr(most + 8, end - most - 8)))
      kernel->most_threads *= unsigned(number(size));
  }
  module.kernels[kernel->name] = std::move(kernel);
}

void write_initial_values(std::byte* data, std::string_view list, const Declaration& d) {
  std::size_t at = 0;
  for (const std::string_view one : split(list.substr(1, list.rfind('}') - 1))) {
    if (at + d.element > d.bytes)
      throw Fault("[ptx] too many initial values of " + std::string(d.name));
    const uint64_t value = number(one);
    std::memcpy(data + at, &value, d.element), at += d.element;
  }
}

void add_variable(Module& module, std::string_view statement) {
  const std::size_t equals = statement.find('=');
  const std::string_view declared = trimmed(statement.substr(0, equals));
  const Declaration d = declaration(declared);
  Variable variable{declared.find(".shared") != npos, d.bytes, d.alignment, nullptr};
  if (!variable.shared) {
    constexpr std::size_t alignment = 64;
    std::byte* const memory = module.data.emplace_back(new std::byte[d.bytes + alignment]()).get();
    variable.data = memory + (alignment - reinterpret_cast<uint64_t>(memory) % alignment);
    if (equals != npos)
      write_initial_values(variable.data, trimmed(statement.substr(equals + 1)), d);
  }
  module.variables[std::string(d.name)] = variable;
}

/// Reads the item that starts at `at`, and returns the start of the next one.
std::size_t read_item(Module& module, std::size_t at) {
  const std::string_view text = module.text;
  for (const std::string_view directive : {".version", ".target", ".address_size"})
    if (text.substr(at, directive.size()) == directive) return text.find('\n', at);
  const std::size_t end = text.find_first_of("{;", at);
  if (end == npos) throw Fault("[ptx] not known: " + std::string(text.substr(at, 60)));
  const std::size_t entry = text.substr(0, end).find(".entry", at),
                    function = text.substr(0, end).find(".func", at);
  if (entry != npos) add_kernel(module, entry + 6, end);
  if (function != npos && text[end] == '{')
    module.functions[std::string(name_after(text, function + 5))] = {function, end};
  if (entry != npos || function != npos)
    return text[end] == ';' ? end + 1 : end_of_braces(text, end) + 1;
  const std::size_t semicolon = text.find(';', at);
  add_variable(module, text.substr(at, semicolon - at));
  return semicolon + 1;
}

}  // namespace

Module::Module(std::string ptx) : text(std::move(ptx)) {
  blank_comments(text);
  for (std::size_t at = 0; (at = text.find_first_not_of(" \t\r\n;", at)) != std::string::npos;)
    at = read_item(*this, at);
}

Kernel& Module::kernel(std::string_view name) {
  const auto found = kernels.find(name);
  if (found == kernels.end()) throw Fault("[ptx] there is no kernel " + std::string(name));
  return *found->second;
}

Range Module::variable_at(uint64_t address) const {
  for (const auto& [name, variable] : variables) {
    const Range range{reinterpret_cast<uint64_t>(variable.data), variable.bytes};
    if (range.holds(address, 1)) return range;
  }
  return {};
}

std::string_view Kernel::text_of(const Instruction& instruction) const {
  const std::string_view all = module->text;
  return trimmed(all.substr(instruction.text, all.find(';', instruction.text) - instruction.text));
}

}  // namespace halftone::ptx
