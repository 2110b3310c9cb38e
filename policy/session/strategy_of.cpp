// Converts a file to a strategy and back.
#include <algorithm>
#include <vector>

#include <halftone/amp/session.h>
#include <halftone/core/error.h>
#include <halftone/policy/file/shipped_policies.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/session.h>

namespace halftone::policy {

namespace {
std::string hash_if_a_file_can_say(const PolicyFile& file) {
  try {
    return hash(file);
  } catch (const UsageError&) { return {}; }
}

class FileSource final : public amp::SessionSource {
 public:
  explicit FileSource(PolicyFile file)
      : file_(std::make_shared<const PolicyFile>(std::move(file))) {}

  std::shared_ptr<amp::Session> session_for(nn::Module& model,
                                            const amp::Strategy& strategy) const override {
    const std::shared_ptr<const Rulebook> rules(file_, &file_->rules);
    return std::make_shared<PolicySession>(
        "policy " + file_->base.name, model, rules,
        PolicySession::Settings{strategy.seed, strategy.wire, hash_if_a_file_can_say(*file_)});
  }
  const PolicyFile* file() const override { return file_.get(); }

 private:
  std::shared_ptr<const PolicyFile> file_;
};
}  // namespace

amp::Strategy strategy_of(PolicyFile file) {
  amp::Strategy strategy = file.base;
  if (!file.rules.empty()) strategy.session = std::make_shared<FileSource>(std::move(file));
  return strategy;
}

amp::Strategy watched_strategy_of(PolicyFile file) {
  amp::Strategy strategy = file.base;
  strategy.session = std::make_shared<FileSource>(std::move(file));
  return strategy;
}

amp::Strategy watched(const amp::Strategy& strategy) {
  return strategy.session ? strategy : watched_strategy_of(file_of(strategy));
}

PolicyFile named_or_read(std::string_view name) {
  if (name.ends_with(".json")) return read(name);
  const auto strategies = amp::Strategy::names();
  if (std::ranges::find(strategies, name) != strategies.end())
    return {.base = amp::Strategy::named(name)};
  std::vector<std::string_view> names(strategies.begin(), strategies.end());
  for (const ShippedPolicy& shipped : shipped_policies()) {
    if (shipped.name == name) return read_text(shipped.text, shipped.name);
    if (std::ranges::find(strategies, shipped.name) == strategies.end())
      names.push_back(shipped.name);
  }
  fail_unknown_name("policy", "strategy or shipped policy", name, names);
}

PolicyFile file_of(const amp::Strategy& strategy) {
  const PolicyFile* made_by = strategy.session ? strategy.session->file() : nullptr;
  if (strategy.session && !made_by)
    fail<UsageError>("policy.file_of", strategy.name,
                     " has a session that no file made. Write down what made it.");
  PolicyFile file = made_by ? *made_by : PolicyFile{};
  file.base = strategy, file.base.session = {};
  return file;
}

}  // namespace halftone::policy
