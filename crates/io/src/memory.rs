//! What the allocator keeps of memory that nobody uses any more.
//!
//! Reading a large configuration takes many times the memory of what is left of it, in small pieces between which the rest
//! lies. The allocator keeps those for later, and later does not come. Only glibc's is told anything here.

#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "the standard library has no call for it"))]

/// Gives what is free back to the system, wherever it lies. It takes some milliseconds for each 100 MiB, in which other
/// threads may wait for memory.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no preconditions, and touches only memory that is not in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has large pieces come from the system and go back to it one by one, however many there were before, and threads share
/// what they have freed. To be called before there are threads.
pub fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these calls have no preconditions; they set two numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
