// Ranks that share nothing but a folder: processes on one host or on several that mount it, over NFS for example, with
// no network between them (docs/processes.md).
//
//   std::unique_ptr<Transport> world = join_folder({.folder = "/mnt/shared/job", .rank = Rank{1}, .size = 4});
//
// Every message is a file there for as long as it is on its way, so this is for who has no other way, or sends little.
// When the job ends, nothing of it is left in the folder; what a killed job left behind, the next one removes.
//
// A rank that is killed is noticed at once by those of its host, and by the others when nothing was heard of it for
// `heartbeat`, as is one that is stopped or cut off.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include <tutti/base/deadline.hpp>
#include <tutti/base/rank.hpp>
#include <tutti/transport/processes.hpp>
#include <tutti/transport/transport.hpp>

namespace tutti {

struct JoinFolderOptions {
  // The same for all. Where it is not there, rank 0 makes it, and it goes with the job.
  std::filesystem::path folder = {};
  // It goes in any case, unless something else is in it: a killed job may have left it.
  bool is_own_folder = false;
  Rank rank = {};
  int size = 1;
  Duration heartbeat = kDefaultHeartbeat;
  // How long to wait until all have come.
  Duration deadline = kDefaultDeadline;
  // On rank 0: called when the folder is this job's, and the others can come.
  std::function<void()> on_call = {};
};

// All ranks call it; comes back when they have met. A rank that is alone needs no folder, and touches none.
//
// UsageError where another job has the folder, or the ranks disagree on how many they are; PeerError late naming who
// has not come; Error naming the path and the system's reason where something cannot be written.
std::unique_ptr<Transport> join_folder(const JoinFolderOptions& options);

}  // namespace tutti
