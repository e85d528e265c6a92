//! The laboratory: namespaces, foreign daemons, traffic.
