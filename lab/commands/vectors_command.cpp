// The flags of halftone-lab vectors, and its files.
#include <iostream>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/commands/vectors.h>

namespace halftone::lab {

namespace {

std::vector<Rounding> vectors_roundings(const VectorsOptions& options) {
  std::vector<Rounding> all;
  for (int i = 0; i < rounding_count; ++i) all.push_back(Rounding(i));
  if (options.rounding.empty()) return all;
  const auto one = rounding_named(options.rounding);
  if (one) return {*one};
  std::string known;
  for (const Rounding rounding : all)
    known += (known.empty() ? "" : ", ") + std::string(name(rounding));
  fail<UsageError>(vectors_op, "there is no rounding named ", quoted(options.rounding),
                   ". Known: ", known, ".");
}

NumberFormat vectors_format(const std::string& name) {
  if (const auto format = number_format_named(name)) return *format;
  std::string known;
  for (const NamedFormat& named : named_formats()) known += std::string(named.name) + ' ';
  fail<UsageError>(vectors_op, "there is no format named ", quoted(name), ". Known: ", known,
                   "and eXmY (2 <= X <= 8, 0 <= Y <= 23), intN (3 <= N <= 16).");
}

Quantizer vectors_quantizer(const VectorsOptions& options) {
  Quantizer quantizer;
  if (!options.quantizer.empty()) {
    const auto named = quantizer_named(options.quantizer);
    if (!named)
      fail<UsageError>(vectors_op, "there is no quantizer named ", quoted(options.quantizer),
                       ". Known: ", list_of(ready_made_quantizers()), ".");
    quantizer = *named;
  }
  if (!options.format.empty()) quantizer.grid = vectors_format(options.format);
  return quantizer;
}

void write_vectors(const std::filesystem::path& path, const Vectors& vectors) {
  if (path.extension() == ".safetensors") save_safetensors(path, vectors.tensors, vectors.metadata);
  else if (path.extension() == ".jsonl") files::replace(vectors_op, path, json_lines_of(vectors));
  else
    fail<UsageError>(vectors_op, "--out is ", quoted(path.string()),
                     ". Its name must end in .safetensors or .jsonl.");
  std::cout << "wrote " << printable(path.string()) << '\n';
}

/// Every named format and every ready-made quantizer, a file for each.
void write_all_vectors(const VectorsOptions& options, const std::vector<Rounding>& roundings) {
  const std::filesystem::path folder(options.output);
  files::make_directories(vectors_op, folder);
  for (const NamedFormat& named : named_formats()) {
    const std::string name(named.name);
    write_vectors(folder / (name + ".safetensors"),
                  vectors_of(name, {.grid = named.format}, roundings, options.count));
  }
  for (const std::string_view ready : ready_made_quantizers()) {
    const std::string name(ready);
    write_vectors(folder / (name + ".safetensors"),
                  vectors_of(name, *quantizer_named(name), roundings, options.count));
  }
}

int compare_with_search(const VectorsOptions& options, const std::vector<Rounding>& roundings) {
  if (!options.quantizer.empty())
    fail<UsageError>(vectors_op, "--exhaustive rounds without a scale. Leave out --quantizer.");
  const Exhaustive result = compare_all(vectors_format(options.format), roundings);
  std::cout << options.format << ": every f32, " << roundings.size()
            << " roundings: " << result.compared << " comparisons, " << result.different
            << " differ\n";
  if (result.different != 0) std::cout << "first: " << result.first << '\n';
  return result.different == 0 ? 0 : 1;
}

}  // namespace

int run_vectors(const VectorsOptions& options) {
  const std::vector<Rounding> roundings = vectors_roundings(options);
  const bool all = options.format.empty() && options.quantizer.empty();
  if (options.exhaustive && !options.format.empty()) return compare_with_search(options, roundings);
  if (options.exhaustive)
    fail<UsageError>(vectors_op, "--exhaustive needs a format. Name one, such as e4m3.");
  if (options.output.empty())
    fail<UsageError>(vectors_op, "no file. Add --out NAME.safetensors or NAME.jsonl.");
  if (all) {
    write_all_vectors(options, roundings);
    return 0;
  }
  std::string name = options.quantizer.empty() ? options.format : options.quantizer;
  if (!options.quantizer.empty() && !options.format.empty()) name += " of " + options.format;
  write_vectors(options.output,
                vectors_of(name, vectors_quantizer(options), roundings, options.count));
  return 0;
}

Work add_vectors(CLI::App& app, const Context&) {
  auto options = std::make_shared<VectorsOptions>();
  app.add_option("format", options->format,
                 "a format (e4m3, e5m6, int4, ...); without it and --quantizer: all named ones");
  app.add_option("--quantizer", options->quantizer,
                 list_of(ready_made_quantizers()) + "; with a format, that is its grid");
  app.add_option("--rounding", options->rounding, "one of the seven; default: all");
  app.add_option("--count", options->count,
                 "inputs; a quantizer has at least as many in each of its three cases")
      ->capture_default_str();
  app.add_option("--out", options->output,
                 "a file (.safetensors or .jsonl); a folder, if all are written");
  app.add_flag("--exhaustive", options->exhaustive,
               "round all 2^32 floats to a format of at most 8 bits and search each result in "
               "f64; exit code 1 if any differs");
  return [options] { return run_vectors(*options); };
}

}  // namespace halftone::lab
