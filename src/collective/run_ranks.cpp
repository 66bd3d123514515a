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

}  // namespace

void run_rank(std::unique_ptr<Transport> transport, const std::function<void(Communicator&)>& f,
              const CommunicatorOptions& options) {
  Communicator world(std::move(transport), options);
  const auto depart = [&](std::string_view why) {
    // Somebody who moved the communicator away decides when it goes.
    if (world.valid()) world.transport().depart(why);
  };
  try {
    f(world);
  } catch (const PeerError& error) {
    depart(fmt::format("{}{}", kGaveUp, error.what()));
    throw;
  } catch (const std::exception& error) {
    depart(fmt::format("threw: {}", error.what()));
    throw;
  } catch (...) {
    depart("threw");
    throw;
  }
  depart("has left");
}

void run_ranks(int ranks, const std::function<void(Communicator&)>& f, const RunRanksOptions& options) {
  std::vector<std::unique_ptr<Transport>> endpoints =
      make_threads_world(ranks, {.shared_memory = options.shared_memory});
  FirstError first_error;
  std::vector<std::jthread> threads;
  threads.reserve(endpoints.size());
  for (std::unique_ptr<Transport>& endpoint : endpoints) {
    threads.emplace_back([&f, &options, &first_error, transport = std::move(endpoint)]() mutable {
      try {
        run_rank(std::move(transport), f, options.communicator);
      } catch (const PeerError&) {
        first_error.keep(std::current_exception(), true);
      } catch (...) {
        first_error.keep(std::current_exception(), false);
      }
    });
  }
  threads.clear();  // joins
  first_error.rethrow();
}

}  // namespace tutti
