#include <tutti/collective/run_ranks.hpp>

#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <tutti/transport/threads.hpp>

namespace tutti {
namespace {

// What the first rank to fail threw. Others mostly throw because of it, a PeerError, and may do so while the first is
// still unwinding: so a PeerError counts only where nobody threw anything else.
class FirstError {
 public:
  void keep(std::exception_ptr error, bool is_peer_error) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& kept = is_peer_error ? of_peer_ : own_;
    if (!kept) kept = std::move(error);
  }
  void rethrow() const {
    if (own_) std::rethrow_exception(own_);
    if (of_peer_) std::rethrow_exception(of_peer_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr own_;
  std::exception_ptr of_peer_;
};

void run_rank(std::unique_ptr<Transport> transport, const std::function<void(Communicator&)>& f,
              const CommunicatorOptions& options, FirstError& first_error) {
  std::optional<Communicator> world;
  std::string why = "has left";
  try {
    world.emplace(std::move(transport), options);
    f(*world);
  } catch (const std::exception& error) {
    first_error.keep(std::current_exception(), dynamic_cast<const PeerError*>(&error) != nullptr);
    why = fmt::format("threw: {}", error.what());
  } catch (...) {
    first_error.keep(std::current_exception(), false);
    why = "threw";
  }
  // Somebody who moved the communicator away decides when it goes.
  if (world && world->valid()) world->transport().depart(why);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& f, const RunRanksOptions& options) {
  std::vector<std::unique_ptr<Transport>> endpoints =
      make_threads_world(ranks, {.shared_memory = options.shared_memory});
  FirstError first_error;
  std::vector<std::jthread> threads;
  threads.reserve(endpoints.size());
  for (std::unique_ptr<Transport>& endpoint : endpoints) {
    threads.emplace_back([&f, &options, &first_error, transport = std::move(endpoint)]() mutable {
      run_rank(std::move(transport), f, options.communicator, first_error);
    });
  }
  threads.clear();  // joins
  first_error.rethrow();
}

}  // namespace tutti
