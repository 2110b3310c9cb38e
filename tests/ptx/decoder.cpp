// Pieces of PTX text.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <string>
#include <utility>

#include "operations.h"
#include "program.h"

namespace halftone::ptx {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && std::string_view("([{<").find(text[i]) != std::string_view::npos)
      ++depth;
    if (i < text.size() && std::string_view(")]}>").find(text[i]) != std::string_view::npos)
      --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    const std::string_view part = trimmed(text.substr(start, i - start));
    if (!part.empty()) parts.push_back(part);
    start = i + 1;
  }
  return parts;
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

uint8_t bytes_of(std::string_view type) {
  if (type == "pred") return 1;
  if (type == "bf16") return 2;
  if (type.size() < 2 || std::string_view("bsuf").find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

std::size_t end_of_braces(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  throw Fault("[ptx] a { without its }: " + std::string(text.substr(open, 60)));
}

std::string_view name_after(std::string_view text, std::size_t at) {
  while (std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  if (text[at] == '(') at = text.find(')', at) + 1;
  while (std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

uint64_t number(std::string_view text) {
  const bool negative = text[0] == '-';
  std::string_view digits = negative ? text.substr(1) : text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && std::isalpha(static_cast<unsigned char>(digits[1])))
    base = 16, digits = digits.substr(2);  // 0x, 0f and 0d
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  const std::string_view rest = digits.substr(std::size_t(end - digits.data()));
  if (error != std::errc() || !(rest.empty() || rest == "U"))
    throw Fault("[ptx] not a number: " + std::string(text));
  return negative ? 0 - value : value;
}

Declaration declaration(std::string_view text) {
  Declaration result{{}, 0, 0, 0};
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = text.find_first_not_of(" \t\r\n", i);
    if (start == std::string_view::npos) break;
    i = std::min(text.find_first_of(" \t\r\n", start), text.size());
    const std::string_view word = text.substr(start, i - start);
    if (word == ".align") {
      const std::size_t digit = text.find_first_not_of(' ', i);
      i = std::min(text.find(' ', digit), text.size());
      result.alignment = uint32_t(number(text.substr(digit, i - digit)));
    } else if (word[0] == '.') {
      if (const uint8_t bytes = bytes_of(word.substr(1))) result.element = bytes;
    } else {
      result.name = word;
    }
  }
  uint64_t count = 1;
  if (const std::size_t bracket = result.name.find('['); bracket != std::string_view::npos) {
    count = number(result.name.substr(bracket + 1, result.name.find(']') - bracket - 1));
    result.name = result.name.substr(0, bracket);
  }
  if (result.name.empty() || result.element == 0)
    throw Fault("[ptx] not a declaration that is known: " + std::string(text));
  result.bytes = uint32_t(count * result.element);
  if (result.alignment == 0) result.alignment = result.element;
  return result;
}

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

// Makes instructions from a kernel's text: registers become rows, labels become positions in the
// code, and each call becomes the body of its function.

namespace {

constexpr auto npos = std::string_view::npos;

class Decoder {
 public:
  explicit Decoder(Kernel& kernel)
      : kernel_(kernel), module_(*kernel.module), text_(kernel.module->text), symbols_(kernel) {}
  void run();

 private:
  /// The end of an inlined body is the label prefix + "end"; a kernel's own labels have no prefix.
  void body(std::size_t open, const std::string& prefix);
  void statement(std::string_view text, const std::string& prefix);
  void instruction(std::string_view text, const std::string& prefix);
  void guard(std::string_view& text);
  void operands_of(const std::vector<std::string_view>& parts, const std::string& prefix);
  void call(const std::vector<std::string_view>& parts);
  void bind(std::string_view formal, std::string_view actual,
            std::map<std::string_view, Symbol>& bound);
  void branch_to(std::string label) { jumps_.push_back({kernel_.code.size(), std::move(label)}); }
  void finish(uint32_t place);

  void values(const std::vector<std::string_view>& parts);
  void move(const std::vector<std::string_view>& parts);
  void low_byte(const std::vector<std::string_view>& parts);
  void access(std::string_view registers, std::string_view place, std::size_t most);
  void shuffle(const std::vector<std::string_view>& parts);
  void matrix(const std::vector<std::string_view>& parts);

  Operand value(std::string_view text, uint8_t width);
  Operand address(std::string_view text);
  uint8_t width_of(std::size_t operand) const {
    return operation_->widths[std::min(operand, operation_->widths.size() - 1)];
  }
  void list(std::string_view braces, uint8_t width) {
    for (const std::string_view one : split(braces.substr(1, braces.rfind('}') - 1)))
      operands_.push_back(value(one, width));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Fault("[ptx] " + what + ": `" + std::string(current_) + "` in " + kernel_.name);
  }
  void find_unwritten() const;

  Kernel& kernel_;
  Module& module_;
  std::string_view text_, current_{};
  Symbols symbols_;
  std::map<std::string, int> labels_{};
  std::vector<std::pair<std::size_t, std::string>> jumps_{};
  int inlined_ = 0, depth_ = 0;
  // of the instruction being read
  const Operation* operation_ = nullptr;
  Instruction instruction_{};
  std::vector<Operand> operands_{};
};

Operand Decoder::value(std::string_view text, uint8_t width) {
  if (text == "_") return {symbols_.new_row(width), width, false, 0};
  if (text[0] == '!') {
    Operand operand = value(trimmed(text.substr(1)), width);
    operand.inverted = true;
    return operand;
  }
  if (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-')
    return symbols_.constant(width, number(text));
  Operand operand;
  if (!symbols_.special(text, operand)) {
    const Symbol* const symbol = symbols_.find(text);
    if (!symbol) fail("there is no " + std::string(text));
    if (symbol->kind != Symbol::Kind::reg) return symbols_.constant(width, symbol->address);
    operand = {uint32_t(symbol->address), symbol->width, false, 0};
  }
  if (operand.width != width)
    fail(std::string(text) + " has " + std::to_string(operand.width) + " bytes, where " +
         std::to_string(width) + " are wanted");
  return operand;
}

/// [register + 8], [variable]. A variable says in which memory it is.
Operand Decoder::address(std::string_view text) {
  text = trimmed(text.substr(1, text.rfind(']') - 1));
  const std::size_t plus = std::min(text.find('+'), text.find('-'));
  const std::string_view base = trimmed(text.substr(0, plus));
  const std::string_view rest =
      plus == npos ? "" : trimmed(text.substr(plus + (text[plus] == '+')));
  const int64_t displacement = rest.empty() ? 0 : int64_t(number(rest));
  const Symbol* const symbol = symbols_.find(base);
  if (!symbol) fail("there is no " + std::string(base));
  Operand operand{uint32_t(symbol->address), symbol->width, false, 0};
  if (symbol->kind != Symbol::Kind::reg) {
    static constexpr Space spaces[] = {Space::generic, Space::shared, Space::local,
                                       Space::parameter, Space::generic};
    const Space space = spaces[int(symbol->kind)];
    const bool of_a_call = instruction_.space == Space::parameter && space == Space::local;
    if (space != instruction_.space && !of_a_call)
      fail("another kind of memory than that of the variable");
    instruction_.space = space;
    operand = symbols_.constant(8, symbol->address);
  } else if (operand.width < 4) {
    fail("an address of " + std::to_string(operand.width) + " bytes");
  }
  operand.displacement = displacement;
  return operand;
}

void Decoder::values(const std::vector<std::string_view>& parts) {
  for (const std::string_view part : parts)
    operands_.push_back(value(part, width_of(operands_.size())));
}

void Decoder::move(const std::vector<std::string_view>& parts) {
  if (parts.size() != 2) fail("a move of another form");
  const bool unpacks = parts[0][0] == '{', packs = parts[1][0] == '{';
  const uint8_t whole = operation_->widths[0];
  if (!packs && !unpacks) return values(parts);
  const auto pieces = uint8_t(split(parts[unpacks ? 0 : 1].substr(1)).size());
  const auto part = uint8_t(whole / pieces);
  if (packs) operands_.push_back(value(parts[0], whole)), list(parts[1], part);
  else list(parts[0], part), operands_.push_back(value(parts[1], whole));
  instruction_.run = packs ? operation_->packing : operation_->unpacking;
  instruction_.results = packs ? 1 : pieces;
}

/// Selects by the width of the register that has the byte.
void Decoder::low_byte(const std::vector<std::string_view>& parts) {
  const Symbol* const symbol = parts.size() == 2 ? symbols_.find(parts[1]) : nullptr;
  if (!symbol) fail("a byte that is not of a register");
  instruction_.run = operation_->by_width[symbol->width == 4];
  operands_ = {value(parts[0], operation_->widths[0]), value(parts[1], symbol->width)};
}

/// A load or a store: the registers decide how many of their bytes are used.
void Decoder::access(std::string_view registers, std::string_view place, std::size_t most) {
  if (most != 2) fail("an access to memory of another form");
  const bool loads = operation_->form == Form::load, vector = registers[0] == '{';
  const std::vector<std::string_view> names =
      vector ? split(registers.substr(1, registers.rfind('}') - 1)) : std::vector{registers};
  if (names.size() != operation_->elements) fail("a vector of another size");
  uint8_t width = std::max<uint8_t>(operation_->widths[0], 2);
  for (const std::string_view name : names)
    if (const Symbol* const symbol = symbols_.find(name)) width = symbol->width;
  instruction_.run = operation_->by_width[width == 2 ? 0 : width == 4 ? 1 : 2];
  if (!instruction_.run) fail("registers of another width");
  if (!loads) operands_.push_back(address(place));
  for (const std::string_view name : names) operands_.push_back(value(name, width));
  if (loads) operands_.push_back(address(place));
}

void Decoder::shuffle(const std::vector<std::string_view>& parts) {
  if (parts.size() != 5) fail("a shuffle of another form");
  const std::size_t bar = parts[0].find('|');
  operands_.push_back(value(trimmed(parts[0].substr(0, bar)), 4));
  operands_.push_back(value(bar == npos ? "_" : trimmed(parts[0].substr(bar + 1)), 1));
  for (std::size_t n = 1; n < parts.size(); ++n) operands_.push_back(value(parts[n], 4));
}

void Decoder::matrix(const std::vector<std::string_view>& parts) {
  for (const std::string_view part : parts) {
    if (part[0] == '{') list(part, 4);
    else operands_.push_back(part[0] == '[' ? address(part) : value(part, 4));
  }
}

void Decoder::operands_of(const std::vector<std::string_view>& parts, const std::string& prefix) {
  switch (operation_->form) {
    case Form::plain:
    case Form::space_cast: return values(parts);
    case Form::carry:
      operands_.push_back(value(parts.at(0), 4)), operands_.push_back(symbols_.carry());
      for (std::size_t n = 1; n < parts.size(); ++n) operands_.push_back(value(parts[n], 4));
      return;
    case Form::move: return move(parts);
    case Form::low_byte: return low_byte(parts);
    case Form::load: return access(parts.at(0), parts.at(1), parts.size());
    case Form::store: return access(parts.at(1), parts.at(0), parts.size());
    case Form::atomic:
      for (const std::string_view part : parts)
        operands_.push_back(part[0] == '[' ? address(part) : value(part, operation_->widths[0]));
      return;
    case Form::shuffle: return shuffle(parts);
    case Form::matrix: return matrix(parts);
    case Form::branch: return branch_to(prefix + std::string(parts.at(0)));
    case Form::barrier:
      if (parts.size() != 1 || parts[0] != "0")
        fail("a barrier that is not number 0 of all threads");
      return;
    case Form::call:
    case Form::leave: return;
  }
}

void Decoder::guard(std::string_view& text) {
  if (text[0] != '@') return;
  const bool inverted = text[1] == '!';
  const std::size_t end = text.find(' ');
  const Operand operand = value(text.substr(inverted ? 2 : 1, end - (inverted ? 2 : 1)), 1);
  instruction_.guarded = true, instruction_.guard_inverted = inverted,
  instruction_.guard = operand.row;
  text = trimmed(text.substr(end));
}

void Decoder::instruction(std::string_view text, const std::string& prefix) {
  instruction_ = {}, operands_.clear();
  const auto place = uint32_t(text.data() - text_.data());
  guard(text);
  std::size_t end = 0;
  while (end < text.size() && (is_word(text[end]) || text[end] == '.' || text[end] == ':')) ++end;
  operation_ = operations().find(text.substr(0, end));
  if (!operation_) fail("an instruction that is not known");
  instruction_.operation = operation_, instruction_.run = operation_->run;
  instruction_.flow = operation_->flow, instruction_.space = operation_->space;
  instruction_.variant = operation_->variant, instruction_.results = operation_->results;
  instruction_.whole_warp = operation_->form == Form::matrix;
  const std::vector<std::string_view> parts = split(text.substr(end));
  if (operation_->form == Form::call) return call(parts);
  if (operation_->form == Form::leave && !prefix.empty()) {
    instruction_.flow = Flow::branch;
    branch_to(prefix + "end");
  }
  operands_of(parts, prefix);
  finish(place);
}

void Decoder::finish(uint32_t place) {
  instruction_.text = place;
  kernel_.operands.push_back(operands_);
  instruction_.operands = kernel_.operands.back().data();
  instruction_.operand_count = uint16_t(operands_.size());
  kernel_.code.push_back(instruction_);
}

void Decoder::bind(std::string_view formal, std::string_view actual,
                   std::map<std::string_view, Symbol>& bound) {
  const Declaration d = declaration(formal);
  const Symbol* const given = symbols_.find(actual);
  if (!given || given->kind != Symbol::Kind::local || given->bytes < d.bytes)
    fail("a parameter of a call that does not fit " + std::string(d.name));
  bound[d.name] = *given;
}

/// call (result), function, (parameters)
void Decoder::call(const std::vector<std::string_view>& parts) {
  if (parts.size() != 3 || instruction_.guarded) fail("a call of another form");
  const auto inner = [](std::string_view text) {
    return split(text.substr(1, text.rfind(')') - 1));
  };
  const auto found = module_.functions.find(parts[1]);
  if (found == module_.functions.end()) fail("there is no function " + std::string(parts[1]));
  if (++depth_ > 8) fail("calls are nested too deeply");
  const auto [header, open] = found->second;
  const std::string_view head = text_.substr(header, open - header);
  constexpr std::size_t directive = 5;  // .func
  const auto name = std::size_t(name_after(head, directive).data() - head.data());
  const std::size_t first = head.find('('), second = head.find('(', name);
  const auto results = inner(head.substr(first, name - first)),
             formals = inner(head.substr(second));
  const auto actual_results = inner(parts[0]), actuals = inner(parts[2]);
  if (results.size() != actual_results.size() || formals.size() != actuals.size())
    fail("another number of parameters than the function has");
  std::map<std::string_view, Symbol> bound;
  for (std::size_t n = 0; n < results.size(); ++n) bind(results[n], actual_results[n], bound);
  for (std::size_t n = 0; n < formals.size(); ++n) bind(formals[n], actuals[n], bound);
  symbols_.open_scope();
  for (const auto& [formal, symbol] : bound) symbols_.declare(formal, symbol);
  const std::string prefix = "call " + std::to_string(++inlined_) + " ";
  body(open, prefix);
  labels_[prefix + "end"] = int(kernel_.code.size());
  symbols_.close_scope();
  --depth_;
}

void Decoder::statement(std::string_view text, const std::string& prefix) {
  current_ = text;
  if (text[0] != '.') return instruction(text, prefix);
  if (!text.starts_with(".pragma")) symbols_.declare(text);
}

void Decoder::body(std::size_t open, const std::string& prefix) {
  const std::size_t end = end_of_braces(text_, open);
  symbols_.open_scope();
  for (std::size_t i = open + 1; i < end;) {
    const char c = text_[i];
    if (c == '{') symbols_.open_scope();
    if (c == '}') symbols_.close_scope();
    if (c == '{' || c == '}' || c == ';' || std::isspace(static_cast<unsigned char>(c))) {
      ++i;
      continue;
    }
    std::size_t word = i;
    while (is_word(text_[word])) ++word;
    if (text_[word] == ':') {
      labels_[prefix + std::string(text_.substr(i, word - i))] = int(kernel_.code.size());
      i = word + 1;
      continue;
    }
    const std::size_t semicolon = text_.find(';', i);
    statement(trimmed(text_.substr(i, semicolon - i)), prefix);
    i = semicolon + 1;
  }
  symbols_.close_scope();
}

/// A register that is read, but that no instruction writes.
void Decoder::find_unwritten() const {
  std::vector<bool> written(kernel_.register_bytes);
  for (const FilledRow& row : kernel_.filled) written[row.row] = true;
  for (const Instruction& i : kernel_.code)
    for (int n = 0; n < i.results; ++n) written[i.operands[n].row] = true;
  for (const Instruction& i : kernel_.code) {
    bool bad = i.guarded && !written[i.guard];
    for (int n = i.results; n < i.operand_count; ++n) bad |= !written[i.operands[n].row];
    if (bad)
      throw Fault("[ptx] a register that nothing writes is read: `" +
                  std::string(kernel_.text_of(i)) + "` in " + kernel_.name);
  }
}

void Decoder::run() {
  body(kernel_.body, "");
  instruction_ = {}, operands_.clear();
  operation_ = operations().find("ret");
  instruction_.operation = operation_, instruction_.run = operation_->run,
  instruction_.flow = Flow::leave;
  finish(uint32_t(end_of_braces(text_, kernel_.body)));
  for (const auto& [at, label] : jumps_) {
    const auto found = labels_.find(label);
    if (found == labels_.end())
      throw Fault("[ptx] there is no label " + label + " in " + kernel_.name);
    kernel_.code[at].target = found->second;
  }
  find_unwritten();
  constexpr uint32_t most_shared = 48 * 1024;
  if (kernel_.shared_bytes > most_shared)
    throw Fault("[ptx] " + std::to_string(kernel_.shared_bytes) +
                " bytes of shared memory, more than " + std::to_string(most_shared) + ", in " +
                kernel_.name);
  kernel_.local_bytes = (kernel_.local_bytes + 15) / 16 * 16;
}

}  // namespace

void decode(Kernel& kernel) {
  if (kernel.decoded) return;
  Decoder(kernel).run();
  if (fuses()) fuse(kernel);
  mutate(kernel);
  kernel.executed.assign(kernel.code.size(), 0);
  kernel.decoded = true;
}

}  // namespace halftone::ptx
