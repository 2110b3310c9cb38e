// Policies as texts of a test: with some entries, and the message for refused ones.
#pragma once

#include <string>

#include <halftone/policy/policy_file.h>

#include "../support.h"

namespace halftone::test {

/// A policy with these entries.
inline std::string text_of(const std::string& entries) {
  return R"({"halftone_policy": 1, "name": "p")" + (entries.empty() ? "" : ", " + entries) + "}";
}
inline policy::PolicyFile file_of(const std::string& entries) {
  return policy::read_text(text_of(entries), "my.json");
}
/// The message for a text, without its "[policy my.json] ".
inline std::string refusal_of_text(const std::string& text) {
  const std::string message = message_of<FormatError>([&] { policy::read_text(text, "my.json"); });
  const std::string where = "[policy my.json] ";
  if (message.empty()) return "accepted";
  return message.starts_with(where) ? message.substr(where.size()) : message;
}
inline std::string refusal_of(const std::string& entries) {
  return refusal_of_text(text_of(entries));
}
inline std::string refusal_of_rule(const std::string& entries) {
  return refusal_of(R"("rules": [{)" + entries + "}]");
}
/// The same for a quantizer that a rule uses.
inline std::string refusal_of_quantizer(const std::string& entries) {
  return refusal_of(R"("quantizers": {"q": {)" + entries + R"(}}, "rules": [{"weight": "q"}])");
}

}  // namespace halftone::test
