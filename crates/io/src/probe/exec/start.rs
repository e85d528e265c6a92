//! Starting a process: `clone` with shared memory, as `posix_spawn` does it, so that nothing of a large daemon is copied
//! and no lock of it is held; and what `posix_spawn` cannot: another user, and an end together with ours.
//!
//! Between `clone` and `execve` the child runs on its own stack in our memory, while the calling thread sleeps. It makes
//! system calls and nothing else: no allocation, no lock, no panic.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Room for the child's few calls.
const STACK: usize = 64 * 1024;

/// The soft limit of open files that programs expect.
const FILES: libc::rlim_t = 1024;

/// What is executed. Its first argument is its path.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) directory: CString,
    /// `None`: who we are.
    pub(super) user: Option<super::user::User>,
}

/// A process that was started: the leader of a process group of its own.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: libc::pid_t,
    /// Readable once it has ended.
    pub(super) ended: OwnedFd,
}

/// What could not be done on the way to a running program.
#[derive(Debug)]
pub(super) struct StartError {
    pub(super) step: Step,
    pub(super) cause: io::Error,
}

/// The steps that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Process,
    Output,
    User,
    Directory,
    Execute,
}

/// What the child needs, and where it says why it gave up.
struct Order<'a> {
    path: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    directory: *const c_char,
    user: Option<&'a super::user::User>,
    input: c_int,
    output: c_int,
    parent: libc::pid_t,
    failed: Option<(Step, c_int)>,
}

/// Starts `program` with `input` as its standard input, and `output` as its standard output and standard error.
///
/// It is the leader of a new process group, and is killed when the calling *thread* ends. Returns when the program runs.
pub(super) fn start(
    program: &Program,
    input: BorrowedFd<'_>,
    output: BorrowedFd<'_>,
) -> Result<Child, StartError> {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(&program.argv), pointers(&program.env));
    let mut order = Order {
        path: argv[0],
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        directory: program.directory.as_ptr(),
        user: program.user.as_ref(),
        input: input.as_raw_fd(),
        output: output.as_raw_fd(),
        // SAFETY: has no conditions.
        parent: unsafe { libc::getpid() },
        failed: None,
    };
    // Sixteen octets aligned, as every calling convention wants it.
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    let mut pidfd: c_int = -1;
    let (pid, error) = without_signals(|| {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own, whose end is passed because it grows downwards. `CLONE_VFORK` keeps this
        // thread asleep until the child has executed the program or ended, so `stack`, `order` and all that it points at
        // outlive the child's use of them, and nobody else has a reference. `child` keeps to what its own contract says.
        let pid = unsafe {
            libc::clone(
                child,
                stack.as_mut_ptr_range().end.cast::<c_void>(),
                flags,
                (&raw mut order).cast::<c_void>(),
                &raw mut pidfd,
            )
        };
        (pid, io::Error::last_os_error())
    });
    if pid < 0 {
        return Err(StartError { step: Step::Process, cause: error });
    }
    // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
    let ended = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: `order` is a live local; the read is volatile because another process wrote it.
    match unsafe { std::ptr::read_volatile(&raw const order.failed) } {
        None => Ok(Child { pid, ended }),
        Some((step, errno)) => {
            reap(pid);
            Err(StartError { step, cause: io::Error::from_raw_os_error(errno) })
        }
    }
}

/// Waits for the end of the child `pid` (or any child of the process group `-pid`) and takes its status; `None`: there is none.
pub(super) fn reap(pid: libc::pid_t) -> Option<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live local.
        match unsafe { libc::waitpid(pid, &raw mut status, 0) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return None,
            _ => return Some(status),
        }
    }
}

/// Whom a signal to a group reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// At least one process.
    Some,
    /// None: there is none.
    Nobody,
    /// None: those that there are belong to another user, as with `sudo`.
    Forbidden,
}

/// Sends `signal` to every process of the group `pgid` that may be signalled.
pub(super) fn signal_group(pgid: libc::pid_t, signal: c_int) -> Reached {
    debug_assert!(pgid > 1, "would reach everybody");
    // SAFETY: has no conditions on memory.
    if unsafe { libc::kill(-pgid, signal) } == 0 {
        return Reached::Some;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM) => Reached::Forbidden,
        _ => Reached::Nobody,
    }
}

/// Runs `work` with every signal of this thread blocked: a handler must not run in a child that shares our memory.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are live locals that the calls fill; an all-zero set is a valid value before that.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}

/// The child, from `clone` to the program: system calls only.
extern "C" fn child(order: *mut c_void) -> c_int {
    // SAFETY: `start` passes its `Order`, which outlives us, and sleeps meanwhile.
    let order = unsafe { &mut *order.cast::<Order<'_>>() };
    let step = become_program(order);
    // SAFETY: `errno` of this thread, which the sleeping caller shares; it reads its own only after a failed clone.
    order.failed = Some((step, unsafe { *libc::__errno_location() }));
    // SAFETY: ends this process and runs nothing of the parent's at its exit.
    unsafe { libc::_exit(127) }
}

/// Returns only if something failed.
fn become_program(order: &Order<'_>) -> Step {
    // SAFETY: plain system calls on values and on pointers that `start` keeps alive. The ids are set by the system calls
    // themselves, because the library's functions would tell every thread of the parent to follow.
    unsafe {
        libc::setpgid(0, 0);
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in 1..=64 {
            // Some cannot be changed, and need not.
            libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        }
        if libc::dup2(order.input, 0) < 0
            || libc::dup2(order.output, 1) < 0
            || libc::dup2(order.output, 2) < 0
        {
            return Step::Output;
        }
        // Every descriptor of ours closes by itself; this is for those that we were started with.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        // This process may hold thousands of descriptors; programs that use select(2), or close every number there could be,
        // are made for the usual limit.
        let mut files: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 && files.rlim_cur > FILES {
            files.rlim_cur = FILES;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
        }
        if let Some(user) = order.user
            && (libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid) < 0
                || libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid) < 0)
        {
            return Step::User;
        }
        if libc::chdir(order.directory) < 0 {
            return Step::Directory;
        }
        // After the change of user, which would undo it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != order.parent {
            // The daemon died first.
            libc::_exit(127);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::execve(order.path, order.argv, order.env);
    }
    Step::Execute
}
