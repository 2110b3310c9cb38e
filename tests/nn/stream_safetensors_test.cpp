// A file of tensors that are not all in memory at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>

#include "../support.h"

namespace halftone::test::stream_safetensors_test {
namespace {

TEST_CASE("stream_safetensors asks for one tensor after another, and writes the same bytes") {
  const TemporaryDirectory directory;
  const NamedTensors tensors{{"weight", from({{1, 2}, {3, 4}}, bf16)},
                             {"count", scalar(3, i64)},
                             {"bias", from({5.0, 6, 7})},
                             {"empty", zeros({0, 4})},
                             {"text", from({65, 66}, u8)}};
  save_safetensors(directory / "whole", tensors, {{"format", "pt"}});
  TensorSource source = source_of(tensors);
  std::ranges::reverse(source.infos);
  std::vector<std::string> asked;
  std::weak_ptr<TensorBody> last;
  source.tensor = [&](const std::string& name) {
    CHECK(last.expired());
    asked.push_back(name);
    const Tensor made = tensors.at(name).clone();
    last = made.body();
    return made;
  };
  stream_safetensors(directory / "streamed", source, {{"format", "pt"}});
  const auto bytes = [&](const char* name) {
    return files::read_text("test", directory / name, 1 << 20);
  };
  CHECK(bytes("streamed") == bytes("whole"));
  CHECK(asked == std::vector<std::string>{"count", "bias", "empty", "weight", "text"});
}

TEST_CASE("stream_safetensors refuses tensors that were not announced") {
  const TemporaryDirectory directory;
  const TensorSource source{.infos = {{.name = "a", .dtype = f32, .shape = {2}}},
                            .tensor = [](const std::string&) {
                              return from({1, 2}, bf16);
                            }};
  CHECK(message_of<UsageError>([&] { stream_safetensors(directory / "other", source); }) ==
        "[save_safetensors] tensor \"a\" is [2] bf16, announced as [2] f32. Announce what comes.");
  CHECK_FALSE(std::filesystem::exists(directory / "other"));
}

}  // namespace
}  // namespace halftone::test::stream_safetensors_test
