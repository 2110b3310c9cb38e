// Parses flags with CLI11.
#include "program.h"

#include <omp.h>

#include <csignal>
#include <iostream>

#include <CLI/CLI.hpp>

#include "output.h"

const Flag& Flag::within(int low, int high) const {
  option_->check(CLI::Range(low, high));
  return *this;
}
const Flag& Flag::within(double low, double high) const {
  option_->check(CLI::Range(low, high));
  return *this;
}
const Flag& Flag::positive() const {
  option_->check(CLI::PositiveNumber);
  return *this;
}
const Flag& Flag::not_negative() const {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}
const Flag& Flag::one_of(const std::vector<std::string>& names) const {
  option_->check(CLI::IsMember(names));
  return *this;
}
const Flag& Flag::existing_file() const {
  option_->check(CLI::ExistingFile);
  return *this;
}

namespace {
template <class T>
Flag added(CLI::App& app, const std::string& name, T& to, const std::string& help) {
  CLI::Option* option = app.add_option(name, to, help);
  if (to != T{}) option->capture_default_str();
  return Flag(option);
}
}  // namespace

Program::Program(const std::string& about) : app_(std::make_unique<CLI::App>(about)) {}
Program::~Program() = default;

Flag Program::flag(const std::string& name, std::string& to, const std::string& help) {
  CLI::Option* option = app_->add_option(name, to, help)->take_last();
  if (!to.empty()) option->capture_default_str();
  return Flag(option);
}
Flag Program::flag(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return Flag(app_->add_option(name, to, help));
}
Flag Program::list(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return Flag(app_->add_option(name, to, help)->delimiter(',')->capture_default_str());
}
Flag Program::flag(const std::string& name, int& to, const std::string& help) {
  return added(*app_, name, to, help);
}
Flag Program::flag(const std::string& name, int64_t& to, const std::string& help) {
  return added(*app_, name, to, help);
}
Flag Program::flag(const std::string& name, uint64_t& to, const std::string& help) {
  return added(*app_, name, to, help);
}
Flag Program::flag(const std::string& name, double& to, const std::string& help) {
  return added(*app_, name, to, help);
}
Flag Program::flag(const std::string& name, bool& to, const std::string& help) {
  return Flag(app_->add_flag(name, to, help));
}
void Program::device(std::string& to) { flag("--device", to, "cpu, cuda or cuda:N"); }

void Program::training(TrainingFlags& to) {
  training_ = &to;
  flag("--data", to.data, "directory of the four IDX files; default: the usual places");
  flag("--epochs", to.epochs, "passes over the images; 0 only evaluates").within(0, 1000);
  flag("--batch", to.batch, "images per step").within(1, 60000);
  flag("--lr", to.lr, "highest learning rate; default: by optimizer").positive();
  flag("--seed", to.seed, "of weights and shuffling");
  flag("--threads", to.threads).within(1, 1024);
  flag("--limit", to.limit, "use only the first images of each split, for a quick try").positive();
  device(to.device);
}

bool Program::given(const std::string& name) const { return app_->count(name) > 0; }

int Program::run(int argc, char** argv, const std::function<void()>& body) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    app_->parse(argc, argv);
    if (training_ && training_->threads > 0) omp_set_num_threads(training_->threads);
    body();
    return after_output();
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : 1;  // prints the help or the error
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
