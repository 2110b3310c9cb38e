// A whole page: what is around it and how it looks. It fetches nothing, and is complete without its
// script.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/lab/draw.h>

namespace halftone::lab::html {

/// Returns <p>text</p>; the text is plain, and is escaped.
std::string paragraph(std::string_view text);
/// Returns the name with the mark that `style` has in figures, as markup. After a click on it, the
/// page's script highlights this name in the figures.
std::string series(std::string_view name, int style);
/// Returns the pictures, side by side as far as there is room; "" for none.
std::string figures(const std::vector<svg::Picture>& pictures);
/// Returns the whole page; the title is plain text, the body markup. The page follows the reader's
/// light or dark scheme, fits narrow windows, and can be printed.
std::string document(std::string_view title, std::string_view body);

}  // namespace halftone::lab::html

// Strategies side by side: what compare_strategies measured, as parts of a page. It needs neither
// runs nor models, so that the program of the main job links no more than this.
// Not installed: it needs a JSON library.

namespace halftone::lab {

/// Returns whether a document is what `compare_strategies --json` writes: an array of objects with
/// "strategy" and "test_accuracy".
bool is_strategy_list(const nlohmann::json& document);

/// Returns the sections of a page: figures, memory at the peak, training losses, and casts of the
/// first step. Fields that are missing or of another type are left out.
std::string strategy_sections(const nlohmann::json& strategies);

/// Returns a whole page with these sections.
std::string strategy_page(const nlohmann::json& strategies);

}  // namespace halftone::lab
