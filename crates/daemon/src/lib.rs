//! The parts of the standfast daemon.
