// The names of a kernel: registers, variables, parameters, labels of scopes; and their rows.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "program.h"

namespace halftone::ptx {

struct Symbol {
  enum class Kind : uint8_t { reg, shared, local, parameter, global } kind = Kind::reg;
  uint8_t width = 0;     // of a register
  uint64_t address = 0;  // the row of a register
  uint32_t bytes = 0;
};

class Symbols {
 public:
  explicit Symbols(Kernel& kernel);

  void open_scope() { scopes_.emplace_back(); }
  void close_scope() { scopes_.pop_back(); }
  /// .reg, .shared, .local or .param in a body.
  void declare(std::string_view directive);
  /// A parameter of an inlined function is the caller's argument.
  void declare(std::string_view name, const Symbol& symbol) { scopes_.back().names[name] = symbol; }
  /// Returns null if the name is not defined.
  const Symbol* find(std::string_view name);

  uint32_t new_row(uint8_t width);
  /// Returns a row that has this value for all threads.
  Operand constant(uint8_t width, uint64_t bits);
  /// %tid.x, %ctaid.x, %ntid.x, %nctaid.x and those of y and z. Returns false for other names.
  bool special(std::string_view name, Operand& operand);
  /// Returns the row of the carry flag.
  Operand carry();

 private:
  struct Series {  // .reg .b32 %r<100>
    uint8_t width;
    std::vector<Symbol> members;
  };
  struct Scope {
    std::map<std::string_view, Symbol> names{};
    std::map<std::string_view, Series> series{};
  };
  const Symbol* member(Scope& scope, std::string_view name);
  void declare_registers(std::string_view text);
  Operand filled(FilledRow row);

  Kernel& kernel_;
  std::vector<Scope> scopes_;
  std::map<std::pair<uint8_t, uint64_t>, uint32_t> constants_{};
  std::map<std::pair<FilledRow::What, uint8_t>, uint32_t> specials_{};
  int64_t carry_ = -1;
};

}  // namespace halftone::ptx
