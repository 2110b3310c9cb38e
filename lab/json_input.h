// JSON from files that other programs wrote or broke: what is missing or of another type is absent,
// and never an exception. Not installed: it needs a JSON library.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace halftone::lab {

/// A whole document, an object. Throws FormatError, in the name of `op` and with the path, for
/// anything else.
nlohmann::json read_json(std::string_view op, const std::filesystem::path& path);

/// Calls `use` with each line that is an object and that `use` takes; how many were neither. Throws
/// FormatError where the file cannot be read.
int64_t each_json_line(std::string_view op, const std::filesystem::path& path,
                       const std::function<bool(const nlohmann::json&)>& use);

/// A finite number.
std::optional<double> number_in(const nlohmann::json& object, const char* key);
/// A number from 0 to 2^53, without its fraction.
std::optional<int64_t> count_in(const nlohmann::json& object, const char* key);
/// "" where there is no text.
std::string text_in(const nlohmann::json& object, const char* key);
/// The member if it is an array or an object; else one that is empty.
const nlohmann::json& array_in(const nlohmann::json& object, const char* key);
const nlohmann::json& object_in(const nlohmann::json& object, const char* key);

}  // namespace halftone::lab
