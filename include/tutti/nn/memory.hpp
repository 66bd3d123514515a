// The memory that tensors are made of. Every step asks for the same memory that the last one gave back: what is given
// back to the system in between must be cleared page by page each time, which can take as long as the step itself.
#pragma once

namespace tutti {

// Once a process: what is freed stays with the process, for the next step (mallopt). Not where the environment says
// otherwise: TUTTI_KEEP_MEMORY=0, or a setting of glibc's own (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_,
// MALLOC_TOP_PAD_). True where it was done. Any thread may call it.
bool keep_freed_memory();

}  // namespace tutti
