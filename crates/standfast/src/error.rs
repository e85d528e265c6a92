//! Why something was not done, and what to do about it.

use std::error::Error;
use std::fmt;
use std::io;

/// Why an announcer did not start. Nothing of it is left behind.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// What was built makes no sense: every reason, not only the first.
    Invalid(Vec<Problem>),
    /// The system refused something that it needs, such as a socket or a thread.
    System {
        /// What was refused.
        what: &'static str,
        /// In the system's words.
        source: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problems) => {
                f.write_str("the announcer cannot start")?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
            Self::System { what, source } => write!(f, "the announcer cannot start: {what}: {source}"),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(_) => None,
            Self::System { source, .. } => Some(source),
        }
    }
}

impl From<StartError> for io::Error {
    /// For a `main` that returns `io::Result`.
    fn from(e: StartError) -> Self {
        match e {
            StartError::Invalid(_) => Self::new(io::ErrorKind::InvalidInput, e),
            StartError::System { ref source, .. } => Self::new(source.kind(), e),
        }
    }
}

/// One thing that is wrong with what was built, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub(crate) place: String,
    pub(crate) what: String,
    pub(crate) help: String,
}

impl Problem {
    /// Where: `announcer`, `peer front` or `vip web`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What is wrong.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it.
    pub fn help(&self) -> &str {
        &self.help
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.what, self.help)
    }
}

/// Why a share was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareError {
    /// There is no bandwidth to take a share of. The state is as before.
    NoBandwidth {
        /// The VIP; with several of them, the first.
        vip: String,
    },
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBandwidth { vip } => write!(
                f,
                "vip {vip} announces no bandwidth that a share could be taken of: build it with Vip::bandwidth"
            ),
        }
    }
}

impl Error for ShareError {}
