//! Network namespaces that this process makes itself, with root or without, and processes inside them.
//!
//! [`isolate`] gives the process private namespaces; every [`Namespace`] made after it is one more host without a link. It lives
//! as long as its handle, a process or a thread inside it does, so nothing has to be deleted. Names as those of `ip netns`
//! are not made. Links are laid by [`crate::netlink::Netlink`].
//!
//! Sources: namespaces(7), user_namespaces(7), network_namespaces(7).

#![expect(unsafe_code, reason = "namespaces are entered by system calls that the standard library lacks")]

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crate::tcp::plain;

/// Moves this process into a network and a mount namespace of its own; if it may not, into a user namespace too, where it is root.
///
/// To be called before the process has a second thread.
///
/// # Errors
/// This machine forbids it. The process is then where it was, or in namespaces without any right.
pub fn isolate() -> Result<Isolation, Forbidden> {
    let isolation = match unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) {
        Ok(()) => Isolation::Network,
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            become_root()?;
            Isolation::User
        }
        Err(e) => return Err(Forbidden::new("make a network namespace", &e)),
    };
    writable_parameters()
        .map_err(|e| Forbidden::new("mount a /proc whose kernel parameters can be written", &e))?;
    Ok(isolation)
}

/// What [`isolate`] needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Namespaces of network and mounts alone.
    Network,
    /// A user namespace around them.
    User,
}

/// Enters a user namespace where the own user and group are root's, and the other two with it.
fn become_root() -> Result<(), Forbidden> {
    // SAFETY: both calls only return a number.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS)
        .map_err(|e| Forbidden::new("make a user namespace", &e))?;
    // Without the first, an unprivileged user may not map a group (user_namespaces(7)).
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {user} 1")),
        ("gid_map", format!("0 {group} 1")),
    ] {
        fs::write(Path::new("/proc/self").join(file), text)
            .map_err(|e| Forbidden::new("become root of a user namespace", &e))?;
    }
    Ok(())
}

/// Where containers mount the kernel parameters read-only, mounts a fresh /proc that only this process and its children see.
fn writable_parameters() -> io::Result<()> {
    let probe = File::options().write(true).open("/proc/sys/net/ipv4/ip_forward");
    if !probe.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)) {
        return Ok(());
    }
    let mount = |source: Option<&'static std::ffi::CStr>, target: &std::ffi::CStr, flags| {
        let source = source.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
        // SAFETY: the strings are NUL-terminated and static; neither kind of mount takes data.
        match unsafe { libc::mount(source, target.as_ptr(), source, flags, std::ptr::null()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(Some(c"proc"), c"/proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC)
}

/// A network namespace: a host with nothing but a `lo` that is down.
#[derive(Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// The one that the calling thread is in.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn current() -> io::Result<Self> {
        File::open(OWN).map(Arc::new).map(Self)
    }

    /// Makes one.
    ///
    /// # Errors
    /// The kernel gives no more, or the right (CAP_SYS_ADMIN, see [`isolate`]) is missing.
    pub fn new() -> Result<Self, Forbidden> {
        let make = || {
            unshare(libc::CLONE_NEWNET)?;
            Self::current()
        };
        on_thread(make).map_err(|e| Forbidden::new("make a network namespace", &e))
    }

    /// Moves the calling thread inside, for good.
    ///
    /// # Errors
    /// The right (CAP_SYS_ADMIN) is missing.
    pub fn join(&self) -> io::Result<()> {
        set(self.as_raw_fd())
    }

    /// Runs `f` on a thread inside. Sockets made there stay there, whoever uses them later.
    ///
    /// # Errors
    /// Those of `f`, or the right (CAP_SYS_ADMIN) is missing.
    pub fn within<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            self.join()?;
            f()
        })
    }

    /// Sets a kernel parameter of it: `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// There is no such parameter, or /proc/sys is read-only.
    pub fn set_parameter(&self, key: &str, value: &str) -> io::Result<()> {
        self.within(|| fs::write(Path::new("/proc/sys").join(key), value)).map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("cannot set the kernel parameter {key} to {value}: {}", plain(&e)),
            )
        })
    }

    /// A program to be started inside. It is killed when the thread that starts it ends, and a terminal's Ctrl-C does not reach it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let namespace = Arc::clone(&self.0);
        let parent = std::process::id();
        let mut command = Command::new(program);
        command.process_group(0);
        let enter = move || {
            set(namespace.as_raw_fd())?;
            // SAFETY: this option takes a number and touches no memory.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the call only returns a number.
            if unsafe { libc::getppid() }.cast_unsigned() != parent {
                // It ended before the line above: nobody would end this process.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            let mut none = MaybeUninit::uninit();
            // SAFETY: `sigemptyset` writes the whole set, and the old mask is not asked for. What this process holds back
            // (see `Signals`) is not the program's business.
            unsafe {
                libc::sigemptyset(none.as_mut_ptr());
                libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            }
            Ok(())
        };
        // SAFETY: between fork and exec `enter` makes system calls only: it allocates nothing and takes no lock. The descriptor
        // is open, for the closure shares it.
        unsafe { command.pre_exec(enter) };
        command
    }
}

impl AsRawFd for Namespace {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Namespaces cannot be made here: what failed, and what would mend it.
#[derive(Debug)]
pub struct Forbidden {
    what: &'static str,
    why: String,
    advice: String,
}

impl Forbidden {
    fn new(what: &'static str, error: &io::Error) -> Self {
        let parameter =
            |key: &str| fs::read_to_string(Path::new("/proc/sys").join(key)).ok()?.trim().parse().ok();
        Self { what, why: plain(error), advice: advice(error.raw_os_error(), parameter) }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}; {}", self.what, self.why, self.advice)
    }
}

impl std::error::Error for Forbidden {}

/// What would mend it: the parameter that is in the way, of those that are known to be.
fn advice(error: Option<i32>, parameter: impl Fn(&str) -> Option<u64>) -> String {
    let blocks = |&(key, good): &(&'static str, u64)| {
        // Nought forbids, or everything else does.
        let value = parameter(key).filter(|&v| (v == 0) != (good == 0))?;
        let name = key.replace('/', ".");
        Some((format!("{name} is {value}"), format!("{name}={good}")))
    };
    let (found, mended): (Vec<_>, Vec<_>) = IN_THE_WAY.iter().filter_map(blocks).unzip();
    if !found.is_empty() {
        return format!("{}: run `sudo sysctl -w {}`", found.join(" and "), mended.join(" "));
    }
    match error {
        Some(libc::ENOSPC | libc::EUSERS) => {
            "all that user.max_user_namespaces and user.max_net_namespaces allow are in use: \
             raise them, as by `sudo sysctl -w user.max_net_namespaces=1024`"
                .to_owned()
        }
        Some(libc::EROFS | libc::EPERM | libc::EACCES) => {
            "a container or a security module forbids it: run this as root on the host, \
             or in a container with `--privileged`"
                .to_owned()
        }
        Some(libc::EINVAL) => {
            "the kernel has no such namespaces (CONFIG_USER_NS, CONFIG_NET_NS), or a second thread runs"
                .to_owned()
        }
        _ => "run this as root on the host".to_owned(),
    }
}

/// Kernel parameters that forbid namespaces, when they do, and the value that allows them.
const IN_THE_WAY: [(&str, u64); 5] = [
    ("kernel/apparmor_restrict_unprivileged_userns", 0),
    ("kernel/unprivileged_userns_clone", 1),
    ("user/max_user_namespaces", 1024),
    ("user/max_net_namespaces", 1024),
    ("user/max_mnt_namespaces", 1024),
];

/// The network namespace of the thread that reads it.
const OWN: &str = "/proc/thread-self/ns/net";

fn on_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes flags and touches no memory of ours.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(namespace: RawFd) -> io::Result<()> {
    // SAFETY: the call takes a descriptor and a flag; one that is no network namespace is refused.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(error: i32, key: &'static str, value: u64) -> String {
        advice(Some(error), |asked| (asked == key).then_some(value))
    }

    #[test]
    fn the_parameter_in_the_way_is_named_with_the_command_that_mends_it() {
        for (error, key, value, command) in [
            (
                libc::EPERM,
                "kernel/apparmor_restrict_unprivileged_userns",
                1,
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            (libc::EPERM, "kernel/unprivileged_userns_clone", 0, "kernel.unprivileged_userns_clone=1"),
            (libc::ENOSPC, "user/max_user_namespaces", 0, "user.max_user_namespaces=1024"),
            (libc::ENOSPC, "user/max_net_namespaces", 0, "user.max_net_namespaces=1024"),
        ] {
            let text = with(error, key, value);
            assert!(text.contains(&format!("`sudo sysctl -w {command}`")), "{text}");
        }
    }

    #[test]
    fn a_parameter_that_allows_it_is_not_blamed() {
        let text = with(libc::EPERM, "kernel/apparmor_restrict_unprivileged_userns", 0);
        assert!(text.contains("--privileged"), "{text}");
        let text = with(libc::ENOSPC, "user/max_user_namespaces", 10);
        assert!(text.contains("in use"), "{text}");
    }
}
