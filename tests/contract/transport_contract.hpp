// What every transport must do. A backend joins by naming itself in <backend>_contract_test.cpp.
//
// A test is a script that every rank runs over its own Transport; how ranks come to be (threads, processes) is the
// backend's business.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include <gtest/gtest.h>
#include <tutti/transport/transport.hpp>

namespace tutti::testing {

struct Backend {
  std::string name;
  Locality locality;  // of the other ranks
  // Runs the script on that many ranks and comes back when all have ended.
  std::function<void(int ranks, const std::function<void(Transport&)>& script)> run;

  friend std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }
};

class TransportContract : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const std::function<void(Transport&)>& script) const { GetParam().run(ranks, script); }
};

}  // namespace tutti::testing
