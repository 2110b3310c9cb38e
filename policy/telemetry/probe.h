// Telemetry of a training: statistics of its tensors and of each rounding, by site and role, in
// sampled steps. docs/telemetry.md defines every number.
//
//   policy::Probe probe(training, {.every = 50});
//   ... train ...
//   std::cout << probe;          // the worst sites
//   probe.save("probe.jsonl");
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/core/formats/survey.h>
#include <halftone/policy/probe.h>
#include <halftone/policy/rules/site.h>
#include <halftone/policy/telemetry/observation.h>
#include <halftone/policy/telemetry/weight_flips.h>

namespace halftone::policy {

struct ProbeOptions {
  /// Observes steps first, first + every, ... up to last. Steps are calls of Training::step(),
  /// skipped ones included.
  int64_t every = 50, first = 0, last = std::numeric_limits<int64_t>::max();
  std::string path = "**";    // of modules, as in rules
  std::vector<Role> roles{};  // none: all
  bool updates = true;        // also of parameters, and flips of rounded weights
};

/// A tensor of one site in one sampled step, over all its passes.
struct ProbeRow {
  int64_t step = 0;
  std::string site;
  Role role = Role::input;
  std::size_t input = 0;  // its index, for operations with several of a role
  std::string quantizer;  // or the dtype that a region casts to; "" without rounding
  double scale = 0;       // from a history; 0: none
  double ideal = 0;       // the scale that the tensor itself would have needed then
  double loss_scale = 1;
  Survey survey{};
  WeightFlips flips{};  // only of rounded weights, from the third sampled step on
};

class Probe {
 public:
  /// Watches a training until it is destroyed; create it in the thread that trains. Watching
  /// changes no bit of any result. `steps`: the number that the training has taken before. Throws
  /// UsageError for options out of range, and if another observer watches.
  explicit Probe(amp::Training& training, ProbeOptions options = {}, int64_t steps = 0);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// Return rows in the order of computation, step by step. They read the device.
  const std::vector<ProbeRow>& rows() const;
  const std::vector<UpdateRow>& updates() const;
  /// Returns the last two samples of each rounded weight in finished steps, and takes them back: a
  /// probe that goes on with them counts the flips of the probe before it.
  NamedTensors history() const;
  void load_history(const NamedTensors& history);
  /// Drops the rows, whose memory grows with the sampled steps.
  void clear();
  /// Writes a JSON object per line: rows, then updates. Throws FormatError if it cannot write.
  void save(const std::filesystem::path& path) const;

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
  Observation observation_;
};

/// Prints the ten rows that lose most of the nonzero values, and the ten with the lowest SQNR.
std::ostream& operator<<(std::ostream& out, const Probe& probe);
/// Returns the lines of save().
std::string json_lines(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);

}  // namespace halftone::policy
