// Telemetry of a training: what is in its tensors and what each rounding does to them, by site and
// role, in sampled steps. docs/telemetry.md defines every number.
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
#include <halftone/core/survey.h>
#include <halftone/policy/telemetry/observation.h>
#include <halftone/policy/rules/site.h>
#include <halftone/policy/telemetry/update_probe.h>

namespace halftone::policy {

struct ProbeOptions {
  /// Steps first, first + every, ... up to last are looked at. Counted are calls of
  /// Training::step(), skipped ones included.
  int64_t every = 50, first = 0, last = std::numeric_limits<int64_t>::max();
  std::string path = "**";    // of modules, as rules have it
  std::vector<Role> roles{};  // none: all
  bool updates = true;        // of parameters, too
};

/// A tensor of one site in one sampled step, over all its passes.
struct ProbeRow {
  int64_t step = 0;
  std::string site;
  Role role = Role::input;
  std::size_t input = 0;  // which one, of operations with several of a role
  std::string quantizer;  // or the dtype that a region casts to; "" where nothing rounds
  double scale = 0;       // that a history gave; 0: none did
  double ideal = 0;       // what the tensor itself would have asked for then
  double loss_scale = 1;
  Survey survey{};
};

class Probe {
 public:
  /// Watches a training until it is destroyed; made in the thread that trains. Watching changes no
  /// bit of any result. Throws UsageError for options out of range, and if another observer
  /// watches.
  explicit Probe(amp::Training& training, ProbeOptions options = {});
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// In the order of computation, step by step. Reads the device.
  const std::vector<ProbeRow>& rows() const;
  const std::vector<UpdateRow>& updates() const;
  /// Forgets the rows, whose memory grows with the sampled steps.
  void clear();
  /// A JSON object per line: rows, then updates. Throws FormatError where it cannot write.
  void save(const std::filesystem::path& path) const;

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
  Observation observation_;
};

/// The ten rows that lose most of what is not 0, and the ten with the least signal to noise.
std::ostream& operator<<(std::ostream& out, const Probe& probe);
/// The lines of save().
std::string json_lines(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);

}  // namespace halftone::policy
