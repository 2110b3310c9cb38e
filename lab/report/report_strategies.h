// Strategies side by side: what compare_strategies measured, as parts of a page. It needs neither
// runs nor models, so that the program of the main job links no more than this.
// Not installed: it needs a JSON library.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace halftone::lab {

/// Whether a document is what `compare_strategies --json` writes: an array of objects with
/// "strategy" and "test_accuracy".
bool is_strategy_list(const nlohmann::json& document);

/// Figures, memory at the peak, training losses, and casts of the first step. Fields that are
/// missing or of another type are left out.
std::string strategy_sections(const nlohmann::json& strategies);

/// A page of its own with these sections.
std::string strategy_page(const nlohmann::json& strategies);

}  // namespace halftone::lab
