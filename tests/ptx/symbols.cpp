#include "symbols.h"

#include <algorithm>
#include <cctype>

namespace halftone::ptx {

namespace {

constexpr uint64_t no_row = ~uint64_t(0);  // before it is used

/// Allocates a range in a kernel's shared or local memory.
uint32_t place_in(uint32_t& size, uint32_t bytes, uint32_t alignment) {
  const uint32_t place = (size + alignment - 1) / alignment * alignment;
  size = place + bytes;
  return place;
}

}  // namespace

Symbols::Symbols(Kernel& kernel) : kernel_(kernel), scopes_(1) {
  for (const Parameter& p : kernel.parameters)
    declare(p.name, {Symbol::Kind::parameter, 0, p.offset, p.bytes});
}

void Symbols::declare(std::string_view directive) {
  if (directive.starts_with(".reg")) return declare_registers(directive.substr(4));
  const Declaration d = declaration(directive);
  const bool shared = directive.starts_with(".shared");
  if (!shared && !directive.starts_with(".local") && !directive.starts_with(".param"))
    throw Fault("[ptx] a directive that is not known: " + std::string(directive));
  const uint32_t place =
      place_in(shared ? kernel_.shared_bytes : kernel_.local_bytes, d.bytes, d.alignment);
  declare(d.name, {shared ? Symbol::Kind::shared : Symbol::Kind::local, 0, place, d.bytes});
}

void Symbols::declare_registers(std::string_view text) {
  text = trimmed(text);
  const std::size_t end = text.find(' ');
  const uint8_t width = bytes_of(text.substr(1, end - 1));
  if (width == 0) throw Fault("[ptx] a register type that is not known: " + std::string(text));
  for (const std::string_view name : split(text.substr(end))) {
    const std::size_t bracket = name.find('<');
    if (bracket == std::string_view::npos) {
      declare(name, {Symbol::Kind::reg, width, no_row, 0});
      continue;
    }
    const uint64_t count = number(name.substr(bracket + 1, name.find('>') - bracket - 1));
    scopes_.back().series[name.substr(0, bracket)] = {
        width, std::vector<Symbol>(count, {Symbol::Kind::reg, width, no_row, 0})};
  }
}

const Symbol* Symbols::member(Scope& scope, std::string_view name) {
  std::size_t digits = name.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  if (digits == name.size()) return nullptr;
  const auto found = scope.series.find(name.substr(0, digits));
  if (found == scope.series.end()) return nullptr;
  const uint64_t index = number(name.substr(digits));
  if (index >= found->second.members.size()) return nullptr;
  Symbol& symbol = found->second.members[index];
  if (symbol.address == no_row) symbol.address = new_row(symbol.width);
  return &symbol;
}

const Symbol* Symbols::find(std::string_view name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const Symbol* const symbol = member(*scope, name)) return symbol;
    const auto found = scope->names.find(name);
    if (found == scope->names.end()) continue;
    Symbol& symbol = found->second;
    if (symbol.kind == Symbol::Kind::reg && symbol.address == no_row)
      symbol.address = new_row(symbol.width);
    return &symbol;
  }
  const auto variable = kernel_.module->variables.find(name);
  if (variable == kernel_.module->variables.end()) return nullptr;
  const Variable& v = variable->second;
  Symbol symbol{Symbol::Kind::global, 0, reinterpret_cast<uint64_t>(v.data), v.bytes};
  if (v.shared)
    symbol = {Symbol::Kind::shared, 0, place_in(kernel_.shared_bytes, v.bytes, v.alignment),
              v.bytes};
  return &(scopes_.front().names[variable->first] = symbol);
}

uint32_t Symbols::new_row(uint8_t width) {
  const uint32_t row = kernel_.register_bytes;
  kernel_.register_bytes += width;
  return row;
}

Operand Symbols::filled(FilledRow row) {
  row.row = new_row(row.width);
  kernel_.filled.push_back(row);
  return {row.row, row.width, false, 0};
}

Operand Symbols::constant(uint8_t width, uint64_t bits) {
  if (width < 8) bits &= (uint64_t(1) << (8 * width)) - 1;
  const auto found = constants_.find({width, bits});
  if (found != constants_.end()) return {found->second, width, false, 0};
  const Operand operand = filled({FilledRow::What::bits, width, 0, 0, bits});
  constants_[{width, bits}] = operand.row;
  return operand;
}

bool Symbols::special(std::string_view name, Operand& operand) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot + 2 != name.size() || name[dot + 1] < 'x' ||
      name[dot + 1] > 'z')
    return false;
  static const std::map<std::string_view, FilledRow::What> whats{
      {"%tid", FilledRow::What::thread},
      {"%ctaid", FilledRow::What::block},
      {"%ntid", FilledRow::What::block_size},
      {"%nctaid", FilledRow::What::grid_size}};
  const auto what = whats.find(name.substr(0, dot));
  if (what == whats.end()) return false;
  const auto dimension = uint8_t(name[dot + 1] - 'x');
  const auto found = specials_.find({what->second, dimension});
  if (found != specials_.end()) return operand = {found->second, 4, false, 0}, true;
  operand = filled({what->second, 4, dimension, 0, 0});
  specials_[{what->second, dimension}] = operand.row;
  return true;
}

Operand Symbols::carry() {
  if (carry_ < 0) carry_ = new_row(1);
  return {uint32_t(carry_), 1, false, 0};
}

}  // namespace halftone::ptx
