// The frame of every program with flags: it parses, runs, and turns errors into a message and exit
// code 1. A reader that closes the output (`| head`) does not end it. Only program.cpp includes the
// parser (CLI11), so that a lesson compiles quickly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// The values that a flag accepts; by default all. Each function returns the flag again.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}
  const Flag& within(int low, int high) const;
  const Flag& within(double low, double high) const;
  const Flag& positive() const;
  const Flag& not_negative() const;
  const Flag& one_of(const std::vector<std::string>& names) const;
  const Flag& existing_file() const;

 private:
  CLI::Option* option_;
};

/// Flags of the programs that train on Fashion-MNIST.
struct TrainingFlags {
  std::string data{}, device = "cpu";
  int64_t epochs = 3, batch = 128, limit = 0;  // limit: images of each split; 0: all
  double lr = 0;                               // 0: a rate that suits the optimizer
  uint64_t seed = 0;
  int threads = 0;  // 0: OpenMP's default
};

class Program {
 public:
  explicit Program(const std::string& about);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Adds a flag (or, without dashes, an argument) that writes to `to`. The value of `to` is the
  /// default, which --help shows.
  Flag flag(const std::string& name, std::string& to, const std::string& help = "");
  Flag flag(const std::string& name, std::vector<std::string>& to, const std::string& help = "");
  Flag flag(const std::string& name, int& to, const std::string& help = "");
  Flag flag(const std::string& name, int64_t& to, const std::string& help = "");
  Flag flag(const std::string& name, uint64_t& to, const std::string& help = "");
  Flag flag(const std::string& name, double& to, const std::string& help = "");
  /// Adds a flag without a value.
  Flag flag(const std::string& name, bool& to, const std::string& help = "");
  /// Adds a flag for several values, separated by commas.
  Flag list(const std::string& name, std::vector<std::string>& to, const std::string& help = "");
  /// Adds --device, for programs that train.
  void device(std::string& to);
  /// Adds all of them; run() sets the number of threads.
  void training(TrainingFlags& to);

  /// Returns whether a flag was given; call it within the body.
  bool given(const std::string& name) const;
  /// Reads the flags and calls body(). Returns the exit code.
  int run(int argc, char** argv, const std::function<void()>& body);

 private:
  std::unique_ptr<CLI::App> app_;
  const TrainingFlags* training_ = nullptr;
};
