//! What a response body must be: a text in it, a regular expression that matches, a jq program that says `true`.
//!
//! Bodies, what programs make of them, and what is looked for never reach a detail: they may hold secrets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use jaq_json::Val;
use memchr::memmem::Finder;
use standfast_core::plan::HttpProbe;

use super::jq::{Program, STACK, Said, Stop};
use super::pattern::Pattern;
use super::run::Failure;

/// A larger body, and one that is too large for the regular expression, is judged on a thread of its own, so that it does not hold up other checks.
const INLINE: usize = 32 << 10;

/// The rules of one check, compiled; `None` if it has none.
#[derive(Debug, Clone)]
pub(super) struct Rules(Option<Arc<Inner>>);

struct Inner {
    text: Option<Finder<'static>>,
    regex: Option<Pattern>,
    jq: Option<Program>,
    /// A thread judges. One that never ends holds this, so that there is never a second one.
    busy: AtomicBool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").field("text", &self.text).field("regex", &self.regex).finish_non_exhaustive()
    }
}

impl Rules {
    /// Compiles the rules of `probe`.
    pub(super) fn prepare(probe: &HttpProbe) -> Result<Self, String> {
        Self::new(probe.text.as_deref(), probe.regex.as_deref(), probe.jq.as_deref())
    }

    /// Compiles these rules.
    pub(super) fn new(text: Option<&str>, pattern: Option<&str>, code: Option<&str>) -> Result<Self, String> {
        if text.is_none() && pattern.is_none() && code.is_none() {
            return Ok(Self(None));
        }
        let text = text.map(|text| Finder::new(text).into_owned());
        let jq = code.map(|code| Program::compile(code).map_err(|e| format!("jq program {code:?}: {e}")));
        Ok(Self(Some(Arc::new(Inner {
            text,
            regex: pattern.map(Pattern::compile).transpose()?,
            jq: jq.transpose()?,
            busy: AtomicBool::new(false),
        }))))
    }

    /// Whether the body matters at all.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Judges `body`, of which the rest was not read if it is `cut`, and gives it back. The caller bounds the wait.
    pub(super) async fn judge(&self, body: Vec<u8>, cut: bool) -> Result<Vec<u8>, Failure> {
        let Some(rules) = &self.0 else { return Ok(body) };
        let quick = rules.regex.as_ref().is_none_or(|regex| regex.is_quick(body.len()));
        if rules.jq.is_none() && body.len() <= INLINE && quick {
            return rules.judge(&body, cut, &AtomicBool::new(false)).map(|()| body).map_err(Failure::Bad);
        }
        if rules.busy.swap(true, Ordering::AcqRel) {
            return Err(Failure::Bad("the body rules of an earlier run have not ended yet".into()));
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let held = Arc::clone(rules);
        // Dropped with this future, when the run's time is up.
        let waiting = Waiting(Arc::default());
        let abandoned = Arc::clone(&waiting.0);
        let spawned =
            std::thread::Builder::new().name("body-rules".into()).stack_size(STACK).spawn(move || {
                let guard = Busy(held);
                let judged = guard.0.judge(&body, cut, &abandoned).map(|()| body);
                // Before it is told, so that a run which follows at once finds the place free.
                drop(guard);
                // Nobody listens any more if the run's time was up.
                let _ = tell.send(judged);
            });
        if let Err(e) = spawned {
            rules.busy.store(false, Ordering::Release);
            return Err(Failure::Local(format!("thread for the body rules: {}", crate::dial::words(&e))));
        }
        match told.await {
            Ok(judged) => judged.map_err(Failure::Bad),
            Err(_) => Err(Failure::Bad("the body rules panicked".into())),
        }
    }
}

/// Says so when nobody waits for the verdict any more.
pub(super) struct Waiting(pub(super) Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Frees the place of the one judging thread, also when it panics.
struct Busy(Arc<Inner>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Judges `body` by rules of every kind, on a thread with the stack of those that judge.
pub(super) fn fuzz(body: &[u8]) {
    static RULES: LazyLock<Vec<Rules>> = LazyLock::new(|| {
        let programs = [
            ".a.b == 1",
            "[..] | length > 3",
            "(tojson | fromjson) == .",
            "[paths] | length > 2",
            "(to_entries | map(.value) | add) == 1",
            "(.. |= .) == .",
            "[paths(type == \"number\") as $p | getpath($p)] | add > 0",
            "(sort | unique | group_by(.) | flatten | length) > 0",
            "ascii_downcase | split(\"a\") | join(\"b\") | test(\"a+b\")",
            "[limit(5; recurse(.[]?))] | min_by(.a) == max_by(.a)",
        ];
        let rules = programs.iter().map(|jq| Rules::new(None, None, Some(jq)));
        let texts = [Rules::new(Some("ok"), None, None), Rules::new(None, Some("^a+(b|c)?$"), None)];
        rules.chain(texts).map(|rule| rule.unwrap_or_else(|e| panic!("{e}"))).collect()
    });
    let judge = || {
        for rules in RULES.iter().filter_map(|rules| rules.0.as_ref()) {
            let _ = rules.judge(body, false, &AtomicBool::new(false));
            let _ = rules.judge(body, true, &AtomicBool::new(false));
        }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, judge);
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Ok(Ok(())) => {}
            Err(e) => panic!("no thread: {e}"),
        }
    });
}

impl Inner {
    fn judge(&self, body: &[u8], cut: bool, abandoned: &AtomicBool) -> Result<(), String> {
        let first = if cut {
            format!(" in its first {} bytes, and the rest was not read", body.len())
        } else {
            String::new()
        };
        if let Some(text) = &self.text
            && text.find(body).is_none()
        {
            return Err(format!("body does not hold what response_text wants{first}"));
        }
        if let Some(regex) = &self.regex
            && !regex.is_match(body)
        {
            return Err(format!("body does not match response_regex{first}"));
        }
        let Some(jq) = &self.jq else { return Ok(()) };
        if cut {
            return Err(format!("body is longer than {} bytes, too long for jq", body.len()));
        }
        // serde_json stops at a depth that jaq's own reader would follow until the stack ends.
        let input = serde_json::from_slice::<Val>(body)
            .map_err(|e| format!("body is not JSON: line {} column {}", e.line(), e.column()))?;
        match jq.run(input, body.len(), abandoned) {
            Said::True => Ok(()),
            Said::Other(kind) => Err(format!("jq gave {kind}, want true")),
            Said::Error => Err("jq program ended with an error on this body".into()),
            Said::Nothing => Err("jq gave nothing, want true".into()),
            Said::Stopped(Stop::Steps(n)) => Err(format!("jq program did not end within {n} steps")),
            Said::Stopped(Stop::Depth) => Err("jq program recurses too deeply".into()),
            Said::Stopped(Stop::Abandoned) => Err("jq program took too long".into()),
        }
    }
}
