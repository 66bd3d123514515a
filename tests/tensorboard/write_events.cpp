// Writes a run for TensorBoard, and beside it what a reader should find.
//
//   write_events <folder>     makes <folder>/run/events.out.tfevents... and <folder>/expected.json
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <tutti/base/random.hpp>
#include <tutti/report/tensorboard_file.hpp>

namespace {

using tutti::NamedNumber;
namespace event = tutti::event;

// JSON has no word for these.
nlohmann::json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return value;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  const std::filesystem::path folder = words[1];
  double wall_time = 1.7e9;
  nlohmann::json expected = nlohmann::json::array();
  const auto expect = [&](std::int64_t step, const std::string& place, const std::vector<NamedNumber>& scalars) {
    wall_time += 0.25;
    nlohmann::json event{{"wall_time", wall_time}, {"step", step}, {"scalars", nlohmann::json::array()}};
    for (const NamedNumber& scalar : scalars)
      event["scalars"].push_back({{"tag", place + "/" + scalar.name}, {"value", number(scalar.value)}});
    expected.push_back(event);
  };

  tutti::TensorBoardFile file(folder / "run", {.every_steps = 1, .wall_time = [&] { return wall_time; }});
  file.on(event::RunStarted{.first_step = 1000});
  expected.push_back({{"wall_time", wall_time}, {"step", 0}, {"file_version", "brain.Event:2"}});
  expected.push_back({{"wall_time", wall_time}, {"step", 1001}, {"session_start", true}});
  tutti::RandomStream random({1});
  for (std::int64_t step = 1001; step <= 1300; ++step) {
    const double loss = std::exp(40 * random.uniform() - 20);
    const double accuracy = step == 1100 ? std::numeric_limits<double>::quiet_NaN() : random.uniform();
    const double lr = step == 1200 ? -std::numeric_limits<double>::infinity() : 1.0 / static_cast<double>(step);
    expect(step, "train", {{"loss", loss}, {"lr", lr}, {"accuracy", accuracy}});
    file.on(event::StepEnded{.step = step, .loss = loss, .lr = lr, .rows = 1, .metrics = {{"accuracy", accuracy}}});
    if (step % 100 == 0) {
      expect(step, "test", {{"loss", -loss}, {"größe", 0}});
      file.on(event::EvaluationEnded{.step = step, .split = "test", .loss = -loss, .metrics = {{"größe", 0}}});
    }
  }
  const std::int64_t late = std::int64_t{1} << 40;
  expect(late, "train", {{"loss", 1}, {"lr", 0}});
  file.on(event::StepEnded{.step = late, .loss = 1});
  file.on(event::RunEnded{.step = late});
  std::ofstream(folder / "expected.json") << expected;
  return 0;
}
