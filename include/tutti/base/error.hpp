// What can go wrong, in three kinds (docs/errors.md):
//
//   UsageError   misuse: a bad argument, file or shape. Nothing happened.
//   PeerError    a peer failed: lost, late, or it brought something else than we did.
//   an assertion our own bug: prints both values and ends the process (base/assert.hpp).
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tutti/base/rank.hpp>

namespace tutti {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UsageError : public Error {
 public:
  using Error::Error;
};

enum class FailureKind {
  lost,          // the peer is gone: it left, threw, or died
  late,          // the peer is alive, and the deadline passed
  cancelled,     // a rank ended the call, or gave up its part in it
  disagreement,  // the ranks brought different things to one call
};

// What went wrong with which ranks, as a value that can cross threads.
struct Failure {
  FailureKind kind = FailureKind::lost;
  std::vector<Rank> ranks = {};
  std::string message = {};
};

// What was thrown says.
inline std::string text_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "what was thrown is no std::exception";
  }
}

class PeerError : public Error {
 public:
  explicit PeerError(Failure failure) : Error(failure.message), failure_(std::move(failure)) {}

  FailureKind kind() const { return failure_.kind; }
  const std::vector<Rank>& ranks() const { return failure_.ranks; }
  const Failure& failure() const { return failure_; }

  // After a disagreement nothing was touched and the next call works; anything else breaks the communicator.
  bool communicator_usable() const { return failure_.kind == FailureKind::disagreement; }

 private:
  Failure failure_;
};

}  // namespace tutti
