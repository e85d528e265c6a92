//! The announcer inside the service: start, report, drain.
