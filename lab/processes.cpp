// Starting, waiting, and signals.
#include <halftone/lab/processes.h>

#include <csignal>
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

volatile std::sig_atomic_t stopped_by = 0;
constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP};

/// The process that started this one.
const std::string parent_variable = "HALFTONE_LAB_PARENT";

/// Also there if the file has been replaced since the program started.
constexpr const char* own_program = "/proc/self/exe";

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

struct StopSignals::Before {
  std::array<struct sigaction, stop_signals.size()> actions{};
};

StopSignals::StopSignals() : before_(std::make_unique<Before>()) {
  stopped_by = 0;
  struct sigaction action {};
  action.sa_handler = [](int signal) { stopped_by = signal; };
  for (std::size_t i = 0; i < stop_signals.size(); ++i)
    sigaction(stop_signals[i], &action, &before_->actions[i]);
}
StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < stop_signals.size(); ++i)
    sigaction(stop_signals[i], &before_->actions[i], nullptr);
}
bool StopSignals::came() { return stopped_by != 0; }

void Processes::start(std::size_t id, const std::vector<std::string>& words,
                      const std::filesystem::path& log) {
  std::vector<std::string> arguments{"halftone-lab"}, variables;
  arguments.insert(arguments.end(), words.begin(), words.end());
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  variables.push_back(parent_variable + ('=' + std::to_string(getpid())));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t process = 0;
  const int error = posix_spawn(&process, own_program, &actions, nullptr,
                                pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    fail<UsageError>(op_, "cannot start ", own_program, ": ", std::strerror(error),
                     ". Try fewer --jobs.");
  running_[process] = id;
}

/// Looks again and again: a signal that comes just before a wait would be seen after it.
std::optional<Processes::Ended> Processes::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  while (!StopSignals::came()) {
    int status = 0;
    const auto found = running_.find(waitpid(-1, &status, WNOHANG));
    if (found == running_.end()) {
      if (std::chrono::duration<double>(Clock::now() - began).count() > seconds)
        return Ended{none, true};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    const Ended ended{found->second, WIFEXITED(status) && WEXITSTATUS(status) == 0};
    running_.erase(found);
    return ended;
  }
  return {};
}

void Processes::end_all() {
  for (const auto& [process, id] : running_) kill(process, SIGTERM);
  for (const auto& [process, id] : running_) waitpid(process, nullptr, 0);
  running_.clear();
}

void end_with_parent() {
  const char* const parent = std::getenv(parent_variable.c_str());
  if (!parent || !*parent) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != parent) std::raise(SIGTERM);  // it has ended before the call
}

std::string last_line(std::string_view op, const std::filesystem::path& log) {
  std::string text;
  try {
    text = files::read_text(op, log, 1 << 24);
  } catch (const Error&) { return "its log cannot be read"; }
  std::string line;
  for (std::istringstream lines(text); std::getline(lines, text);)
    if (!text.empty() && !text.starts_with("Run with --help")) line = text;
  return line;
}

std::string time_left(double seconds) {
  const bool minutes = seconds >= 120;
  return "about " + number(std::ceil(minutes ? seconds / 60 : seconds)) +
         (minutes ? " min left" : " s left");
}

}  // namespace halftone::lab
