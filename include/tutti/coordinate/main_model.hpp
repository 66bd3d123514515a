// The parameters that a coordinator has: they change one whole version at a time, and who reads them gets the
// parameters of one version, without stopping who changes them.
//
//   MainModel model;
//   model.set(parameters);
//   const ModelSnapshot now = model.snapshot();   // copies nothing, and stays as it is for as long as it is held
//   // From this version to the next:
//   model.change([&](ParameterSet& parameters, std::int64_t version) { ... });
//
// Parameters are changed where they are while nobody holds a snapshot of them. Otherwise a copy is changed, and takes
// their place; copies whose snapshots are gone are used again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <tutti/base/parameter_set.hpp>

namespace tutti {

struct ModelSnapshot {
  std::shared_ptr<const ParameterSet> parameters = {};  // null where there are none yet
  std::int64_t version = 0;                             // how often they had changed
};

// Any thread may call any of these.
class MainModel {
 public:
  // Others from now on: a version more, where there were some. A set that is shared is not copied: nobody may change
  // it any more.
  void set(ParameterSet parameters);
  void set(std::shared_ptr<const ParameterSet> parameters);

  // Waits while parameters are changed where they are, which is for one change.
  ModelSnapshot snapshot() const;
  std::int64_t version() const;
  bool empty() const;

  // One at a time; others wait for their turn. Returns the version that it made. What `f` throws leaves parameters and
  // version as they were, unless `never_fails` says that it never throws halfway: then they need not be copied. A
  // UsageError where there are none.
  using Changer = std::function<void(ParameterSet& parameters, std::int64_t version)>;
  std::int64_t change(const Changer& f, bool never_fails = false);

  // Nobody changes them while `f` looks at them. Nothing where there are none.
  void hold(const std::function<void(const ParameterSet& parameters, std::int64_t version)>& f) const;

  // Those of a checkpoint, and how often they had changed. Nobody changes them while `first` goes ahead; what it throws
  // leaves them as they are.
  void restore(ParameterSet parameters, std::int64_t version, const std::function<void()>& first = {});

 private:
  // Memory of one version.
  struct Copy {
    ParameterSet parameters;
    std::atomic<std::int64_t> readers = 0;  // snapshots of it that are held
  };

  class InPlace;

  std::shared_ptr<Copy> idle_copy();
  const ParameterSet& its_parameters() const { return given_ ? *given_ : current_->parameters; }

  mutable std::mutex changing_;  // held by who changes them
  mutable std::mutex mutex_;
  mutable std::condition_variable has_changed_;
  mutable std::int64_t waiting_ = 0;  // for a snapshot
  bool is_changing_in_place_ = false;
  std::shared_ptr<Copy> current_;
  std::shared_ptr<const ParameterSet> given_;  // in place of it: a set that is somebody's
  std::vector<std::shared_ptr<Copy>> others_;
  std::int64_t version_ = 0;
};

}  // namespace tutti
