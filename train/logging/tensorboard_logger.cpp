// Scalars in the event files that TensorBoard reads.
#include <halftone/train/loggers.h>

#include <atomic>
#include <chrono>
#include <cstdio>

#include <unistd.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/train/logging/event_file.h>

namespace halftone::train {

namespace {

using namespace event_file;

std::string event(double seconds) {
  std::string bytes;
  append_double(bytes, 1, seconds);
  return bytes;
}

/// Returns Event{wall_time, step, summary}.
std::string summary_event(double seconds, int64_t step, std::string_view summary) {
  std::string bytes = event(seconds);
  append_integer(bytes, 2, step);
  append_bytes(bytes, 5, summary);
  return framed(bytes);
}

/// Makes a file whose name is unique in this directory, in TensorFlow's pattern; TensorBoard reads
/// files in the order of their names.
std::filesystem::path new_event_file(const std::filesystem::path& directory) {
  static std::atomic<int> counter = 0;
  files::require_path("TensorBoardLogger", directory);
  std::error_code error, ignored;
  std::filesystem::create_directory(directory, error);
  if (!std::filesystem::is_directory(directory, ignored))
    fail<FormatError>("TensorBoardLogger", "cannot make the directory ", directory.string(), ": ",
                      error ? error.message() : "it is a file",
                      ". Name one whose parent exists and is writable.");
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  char name[400];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d",
                static_cast<long long>(seconds), host, long(::getpid()), counter++);
  return directory / name;
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(const std::filesystem::path& directory)
    : file_("TensorBoardLogger", new_event_file(directory), LogFile::Tail::keep) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  std::string version = event(seconds);
  append_bytes(version, 3, "brain.Event:2");  // the first event names the format
  file_.append(framed(version), seconds);
}

void TensorBoardLogger::write(const LogRecord& record) {
  std::string summary;
  for (const NamedNumber& number : record.numbers) {
    std::string value;  // Summary.Value{tag, simple_value}
    append_bytes(value, 1, number.name);
    append_float(value, 2, float(number.value));
    append_bytes(summary, 1, value);
  }
  file_.append(summary_event(record.seconds, record.step, summary), record.seconds);
}

/// Writes the input of the text plugin: a string tensor of shape [1] with metadata that name the
/// plugin.
void TensorBoardLogger::write_text(int64_t step, double seconds, std::string_view name,
                                   std::string_view text) {
  std::string size, shape, tensor, plugin, metadata, value, summary;
  append_integer(size, 1, 1);       // TensorShapeProto.Dim{size}
  append_bytes(shape, 2, size);     // TensorShapeProto{dim}
  append_integer(tensor, 1, 7);     // TensorProto{dtype = DT_STRING,
  append_bytes(tensor, 2, shape);   //             tensor_shape,
  append_bytes(tensor, 8, text);    //             string_val}
  append_bytes(plugin, 1, "text");  // SummaryMetadata.PluginData{plugin_name}
  append_bytes(metadata, 1, plugin);
  append_bytes(value, 1, std::string(name) + "/text_summary");
  append_bytes(value, 8, tensor);
  append_bytes(value, 9, metadata);
  append_bytes(summary, 1, value);
  file_.append(summary_event(seconds, step, summary), seconds);
}

}  // namespace halftone::train
