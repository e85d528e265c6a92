//! What a response body must be: a text in it, a regular expression that matches, a jq program that says `true`.
//!
//! Bodies and what programs make of them never reach a detail: they may hold secrets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jaq_core::data::JustLut;
use jaq_core::load::{Arena, File, Loader, import};
use jaq_core::native::{Fun, run};
use jaq_core::{Compiler, Ctx, Vars, unwrap_valr};
use jaq_json::Val;
use regex::bytes::{Regex, RegexBuilder};
use standfast_core::plan::HttpProbe;

use super::run::Failure;

/// The most memory of a compiled regular expression.
const REGEX_SIZE: usize = 4 << 20;

/// A larger body is judged on a thread of its own, so that it does not hold up other checks.
const INLINE: usize = 32 << 10;

/// Stack of the thread that runs a program; recursion in jq uses it.
const STACK: usize = 16 << 20;

/// The rules of one check, compiled.
#[derive(Debug, Clone)]
pub(super) struct Rules(Arc<Inner>);

struct Inner {
    text: Option<(String, Regex)>,
    regex: Option<Regex>,
    jq: Option<jaq_core::compile::Filter<jaq_core::Native<JustLut<Val>>>>,
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
        let regex = |pattern: &str| RegexBuilder::new(pattern).size_limit(REGEX_SIZE).build();
        let text = probe.text.as_ref().map(|text| {
            Ok::<_, String>((
                text.clone(),
                regex(&regex::escape(text)).map_err(|e| format!("body text: {e}"))?,
            ))
        });
        let pattern =
            probe.regex.as_ref().map(|p| regex(p).map_err(|e| format!("regular expression {p:?}: {e}")));
        let jq = probe.jq.as_ref().map(|code| compile(code).map_err(|e| format!("jq program {code:?}: {e}")));
        Ok(Self(Arc::new(Inner {
            text: text.transpose()?,
            regex: pattern.transpose()?,
            jq: jq.transpose()?,
            busy: AtomicBool::new(false),
        })))
    }

    /// Whether the body matters at all.
    pub(super) fn is_empty(&self) -> bool {
        self.0.text.is_none() && self.0.regex.is_none() && self.0.jq.is_none()
    }

    /// Judges `body`, of which the rest was not read if it is `cut`. The caller bounds the wait.
    pub(super) async fn judge(&self, body: Vec<u8>, cut: bool) -> Result<(), Failure> {
        if self.0.jq.is_none() && body.len() <= INLINE {
            return self.0.judge(&body, cut).map_err(Failure::Bad);
        }
        if self.0.busy.swap(true, Ordering::AcqRel) {
            return Err(Failure::Bad("the body rules of an earlier run have not ended yet".into()));
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let rules = Arc::clone(&self.0);
        let spawned =
            std::thread::Builder::new().name("body-rules".into()).stack_size(STACK).spawn(move || {
                let guard = Busy(rules);
                // Nobody listens any more if the run's time was up.
                let _ = tell.send(guard.0.judge(&body, cut));
            });
        if let Err(e) = spawned {
            self.0.busy.store(false, Ordering::Release);
            return Err(Failure::Local(format!("thread for the body rules: {}", crate::dial::words(&e))));
        }
        match told.await {
            Ok(judged) => judged.map_err(Failure::Bad),
            Err(_) => Err(Failure::Bad("the body rules panicked".into())),
        }
    }
}

/// Frees the place of the one judging thread, also when it panics.
struct Busy(Arc<Inner>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Inner {
    fn judge(&self, body: &[u8], cut: bool) -> Result<(), String> {
        let first = if cut {
            format!(" in its first {} bytes, and the rest was not read", body.len())
        } else {
            String::new()
        };
        if let Some((text, regex)) = &self.text
            && !regex.is_match(body)
        {
            return Err(format!("body does not hold {text:?}{first}"));
        }
        if let Some(regex) = &self.regex
            && !regex.is_match(body)
        {
            return Err(format!("body does not match {:?}{first}", regex.as_str()));
        }
        let Some(filter) = &self.jq else { return Ok(()) };
        if cut {
            return Err(format!("body is longer than {} bytes, too long for jq", body.len()));
        }
        // serde_json stops at a depth that jaq's own reader would follow until the stack ends.
        let input = serde_json::from_slice::<Val>(body)
            .map_err(|e| format!("body is not JSON: line {} column {}", e.line(), e.column()))?;
        let ctx = Ctx::<JustLut<Val>>::new(&filter.lut, Vars::new([]));
        match filter.id.run((ctx, input)).map(unwrap_valr).next() {
            Some(Ok(Val::Bool(true))) => Ok(()),
            Some(Ok(other)) => Err(format!("jq gave {}, want true", kind(&other))),
            Some(Err(_)) => Err("jq program ended with an error on this body".into()),
            None => Err("jq gave nothing, want true".into()),
        }
    }
}

fn kind(value: &Val) -> &'static str {
    match value {
        Val::Null => "null",
        Val::Bool(true) => "true",
        Val::Bool(false) => "false",
        Val::Num(_) => "a number",
        Val::BStr(_) | Val::TStr(_) => "a string",
        Val::Arr(_) => "an array",
        Val::Obj(_) => "an object",
    }
}

/// Compiles a jq program; the error is for its author.
fn compile(code: &str) -> Result<jaq_core::compile::Filter<jaq_core::Native<JustLut<Val>>>, String> {
    let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    let own = own_funs();
    let replaced: Vec<&str> = own.iter().map(|f| f.0).collect();
    let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    let funs: Vec<_> = funs.filter(|f| !replaced.contains(&f.0)).chain(own).collect();
    let arena = Arena::default();
    let modules = Loader::new(defs).load(&arena, File { code, path: () }).map_err(|errors| {
        errors.into_iter().map(|(_, e)| load_error(code, e)).collect::<Vec<_>>().join("; ")
    })?;
    import(&modules, |_| Err("modules cannot be imported".to_owned()))
        .map_err(|_| "modules cannot be imported".to_owned())?;
    Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
        let all = errors.into_iter().flat_map(|(_, e)| e);
        all.map(|(name, what)| format!("undefined {} {name}", what.as_str())).collect::<Vec<_>>().join("; ")
    })
}

fn load_error(code: &str, e: jaq_core::load::Error<&str>) -> String {
    use jaq_core::load::Error;
    let near = |found: &str| match found {
        "" => "at its end".to_owned(),
        found => {
            let at = (found.as_ptr() as usize).saturating_sub(code.as_ptr() as usize);
            format!("at byte {at}, near {:?}", found.chars().take(20).collect::<String>())
        }
    };
    match e {
        Error::Io(_) => "modules cannot be imported".to_owned(),
        Error::Lex(all) => all
            .iter()
            .map(|(want, found)| format!("expected {} {}", want.as_str(), near(found)))
            .collect::<Vec<_>>()
            .join("; "),
        Error::Parse(all) => all
            .iter()
            .map(|(want, found)| format!("expected {} {}", want.as_str(), near(found)))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// Functions that would reach out of the program or follow hostile input without bound, made harmless.
fn own_funs() -> Vec<Fun<JustLut<Val>>> {
    vec![
        run(("fromjson", Box::new([]), |(_, input)| {
            let parsed = match &input {
                Val::TStr(s) | Val::BStr(s) => serde_json::from_slice(s).ok(),
                _ => None,
            };
            let parsed = parsed.ok_or_else(|| jaq_core::Error::str("not JSON").into());
            Box::new(std::iter::once(parsed))
        })),
        run(("halt", Box::new([jaq_core::Bind::Var(())]), |_| {
            Box::new(std::iter::once(Err(jaq_core::Error::str("halt").into())))
        })),
        run(("env", Box::new([]), |_| {
            Box::new(std::iter::once(Err(jaq_core::Error::str("no environment").into())))
        })),
    ]
}
