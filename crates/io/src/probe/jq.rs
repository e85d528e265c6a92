//! A jq program: compiled once, then run on bodies with a bound on its work, its memory and its depth.
//!
//! The interpreter knows no bounds, but it asks for the program's table at each step, and that is where steps are
//! counted. What does much in one step is replaced by something that counts as much: ranges, and the arithmetic that makes
//! large values; and values are weighed before they are written out, compared or walked over, because what is small in
//! memory may be a large tree. So `repeat(.)` ends, and so does `[range(1e18)]`. A program stopped like this unwinds its
//! thread.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use jaq_core::data::HasLut;
use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Def, Pattern, Term};
use jaq_core::load::{Arena, File, Loader, import, parse};
use jaq_core::native::{Fun, bome, run, v};
use jaq_core::ops::Math;
use jaq_core::path::{Part, Path};
use jaq_core::{Compiler, Ctx, DataT, Exn, Filter, Lut, Native, ValR, Vars, unwrap_valr};
use jaq_json::{Num, Val};

/// Stack of the thread that runs a program: recursion of programs, and letting go of nested values, use it. What is not
/// used is not memory.
pub(super) const STACK: usize = 256 << 20;

/// The part of the stack that a program may use by its recursion.
const DEPTH: usize = STACK / 4 * 3;

/// Steps of a program besides those for each octet of the body.
const STEPS: u64 = 1_000_000;
const STEPS_PER_OCTET: u64 = 4;

/// Octets of text made, or elements of arrays looked at, that count as one step.
const OCTETS: u64 = 16;

/// What a new array, object or assignment counts besides its parts, which bounds how deep values can be.
const NEST: u64 = 16;

/// Steps between two looks at whether anybody still waits.
const LOOK: u64 = 256;

/// A program, compiled.
pub(super) struct Program(Filter<Metered>);

/// What a program says of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Its first output is `true`.
    True,
    /// Its first output is something else, of this kind.
    Other(&'static str),
    /// It has no output.
    Nothing,
    /// It ended with an error.
    Error,
    /// It was stopped.
    Stopped(Stop),
}

/// Why a program was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It did this many steps, which is the bound.
    Steps(u64),
    /// It recursed too deeply.
    Depth,
    /// Nobody waits for it.
    Abandoned,
}

impl Program {
    /// Compiles; the error is for the author of the program.
    pub(super) fn compile(code: &str) -> Result<Self, String> {
        let defs = || jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
        let file = |code| File { code, path: () };
        let arena = Arena::default();
        // Once as it stands, for what is wrong with it.
        let modules = Loader::new(defs()).load(&arena, file(code)).map_err(|errors| {
            errors.into_iter().map(|(_, e)| load_error(code, e)).collect::<Vec<_>>().join("; ")
        })?;
        import(&modules, |_| Err("modules cannot be imported".to_owned()))
            .map_err(|_| "modules cannot be imported".to_owned())?;
        // And once with what counts put in.
        let main = parse(code, |p| p.term()).ok_or("modules cannot be imported")?;
        let main = Def { name: MAIN, args: Vec::new(), body: main };
        let defs = defs().map(shorter).chain([main]).map(|d| Def { body: counted(d.body), ..d });
        let modules = Loader::new(defs).load(&arena, file(MAIN)).map_err(|_| "it cannot be loaded")?;
        let own = own();
        let replaced: Vec<&str> = own.iter().map(|f| f.0).collect();
        let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
        let funs: Vec<_> = funs.filter(|f| !replaced.contains(&f.0)).chain(own).collect();
        Compiler::default().with_funs(funs).compile(modules).map(Self).map_err(|errors| {
            let all = errors.into_iter().flat_map(|(_, e)| e);
            all.map(|(name, what)| format!("undefined {} {name}", what.as_str()))
                .collect::<Vec<_>>()
                .join("; ")
        })
    }

    /// Runs on `input`, which came from `octets` of text, until `abandoned`. Needs a thread with a stack of [`STACK`].
    pub(super) fn run(&self, input: Val, octets: usize, abandoned: &AtomicBool) -> Said {
        let bound = STEPS + STEPS_PER_OCTET * octets as u64;
        let base = 0_u8;
        let meter = Meter {
            lut: &self.0.lut,
            count: &Count { left: Cell::new(bound), bound, base: address(&base), abandoned },
        };
        let first = || {
            let ctx = Ctx::<Metered>::new(meter, Vars::new([]));
            self.0.id.run((ctx, input)).map(unwrap_valr).next()
        };
        match catch_unwind(AssertUnwindSafe(first)) {
            Ok(Some(Ok(Val::Bool(true)))) => Said::True,
            Ok(Some(Ok(other))) => Said::Other(kind(&other)),
            Ok(Some(Err(_))) => Said::Error,
            Ok(None) => Said::Nothing,
            Err(panic) => Said::Stopped(stopped(panic)),
        }
    }
}

/// Why it was stopped, or the panic goes on.
fn stopped(panic: Box<dyn Any + Send>) -> Stop {
    match panic.downcast::<Stop>() {
        Ok(stop) => *stop,
        Err(panic) => resume_unwind(panic),
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

/// Where something is on the stack.
fn address(of: &u8) -> usize {
    std::ptr::from_ref(of).addr()
}

/// What programs run with: values of JSON, and a meter.
struct Metered;

impl DataT for Metered {
    type V<'a> = Val;
    type Data<'a> = Meter<'a>;
}

#[derive(Clone, Copy)]
struct Meter<'a> {
    lut: &'a Lut<Metered>,
    count: &'a Count<'a>,
}

struct Count<'a> {
    left: Cell<u64>,
    bound: u64,
    /// Where the stack began.
    base: usize,
    abandoned: &'a AtomicBool,
}

impl<'a> HasLut<'a, Metered> for Meter<'a> {
    fn lut(&self) -> &'a Lut<Metered> {
        self.count.spend(1);
        self.lut
    }
}

impl Count<'_> {
    /// Takes steps, or unwinds if there are none.
    fn spend(&self, steps: u64) {
        let left = self.left.get();
        let here = 0_u8;
        let stop = if steps >= left {
            Stop::Steps(self.bound)
        } else if self.base.abs_diff(address(&here)) > DEPTH {
            Stop::Depth
        } else if left / LOOK != (left - steps) / LOOK && self.abandoned.load(Ordering::Relaxed) {
            Stop::Abandoned
        } else {
            self.left.set(left - steps);
            return;
        };
        // Not a panic: nothing is printed.
        resume_unwind(Box::new(stop));
    }
}

/// What the program is called.
const MAIN: &str = "standfast_main";

/// Names that no program can spell.
const ADD: &str = "!add";
const SUB: &str = "!sub";
const MUL: &str = "!mul";
const NESTED: &str = "!nested";
const WEIGHED: &str = "!weighed";
const VALUE: &str = "$!value";

fn shorter<'s>(def: Def<&'static str>) -> Def<&'s str> {
    def
}

/// `term` with what counts put in place of what does not.
fn counted(term: Term<&str>) -> Term<&str> {
    let each = |b: Box<Term<_>>| Box::new(counted(*b));
    let pipe = |l, r| Term::BinOp(Box::new(l), BinaryOp::Pipe(None), Box::new(r));
    let nested = |term| pipe(Term::Call(NESTED, Vec::new()), term);
    let weighed = |term| pipe(term, Term::Call(WEIGHED, Vec::new()));
    match term {
        Term::Recurse => pipe(Term::Call(WEIGHED, Vec::new()), Term::Recurse),
        Term::Id | Term::Num(_) | Term::Break(_) | Term::Var(_) | Term::Arr(None) => term,
        Term::Str(format, parts) => Term::Str(
            format,
            parts
                .into_iter()
                .map(|part| match part {
                    StrPart::Term(term) => StrPart::Term(weighed(counted(term))),
                    part => part,
                })
                .collect(),
        ),
        Term::Arr(Some(of)) => nested(Term::Arr(Some(each(of)))),
        Term::Obj(pairs) if pairs.is_empty() => Term::Obj(pairs),
        Term::Obj(pairs) => {
            nested(Term::Obj(pairs.into_iter().map(|(k, v)| (counted(k), v.map(counted))).collect()))
        }
        Term::Neg(of) => Term::Neg(each(of)),
        Term::BinOp(l, op, r) => {
            let (l, r) = (each(l), each(r));
            let name = |op| match op {
                Math::Add => Some(ADD),
                Math::Sub => Some(SUB),
                Math::Mul => Some(MUL),
                Math::Div | Math::Rem => None,
            };
            match op {
                BinaryOp::Math(op) if let Some(name) = name(op) => Term::Call(name, vec![*l, *r]),
                // `l += r` is `r as $x | l |= . + $x`.
                BinaryOp::UpdateMath(op) if let Some(name) = name(op) => {
                    let sum = Term::Call(name, vec![Term::Id, Term::Var(VALUE)]);
                    let update = Term::BinOp(l, BinaryOp::Update, Box::new(sum));
                    Term::BinOp(r, BinaryOp::Pipe(Some(Pattern::Var(VALUE))), Box::new(nested(update)))
                }
                BinaryOp::Cmp(op) => {
                    Term::BinOp(Box::new(weighed(*l)), BinaryOp::Cmp(op), Box::new(weighed(*r)))
                }
                BinaryOp::Pipe(Some(pattern)) => {
                    Term::BinOp(l, BinaryOp::Pipe(Some(counted_pattern(pattern))), r)
                }
                BinaryOp::Assign | BinaryOp::Update | BinaryOp::UpdateAlt | BinaryOp::UpdateMath(_) => {
                    nested(Term::BinOp(l, op, r))
                }
                op => Term::BinOp(l, op, r),
            }
        }
        Term::Label(name, of) => Term::Label(name, each(of)),
        Term::Fold(name, of, pattern, parts) => {
            Term::Fold(name, each(of), counted_pattern(pattern), parts.into_iter().map(counted).collect())
        }
        Term::TryCatch(of, or) => Term::TryCatch(each(of), or.map(each)),
        Term::IfThenElse(ifs, or) => {
            Term::IfThenElse(ifs.into_iter().map(|(i, t)| (counted(i), counted(t))).collect(), or.map(each))
        }
        Term::Def(defs, of) => {
            Term::Def(defs.into_iter().map(|d| Def { body: counted(d.body), ..d }).collect(), each(of))
        }
        Term::Call("tojson", args) if args.is_empty() => {
            pipe(Term::Call(WEIGHED, Vec::new()), Term::Call("tojson", args))
        }
        Term::Call(name, args) => Term::Call(name, args.into_iter().map(counted).collect()),
        Term::Path(of, Path(parts)) => {
            let part = |part| match part {
                Part::Index(i) => Part::Index(counted(i)),
                Part::Range(from, to) => Part::Range(from.map(counted), to.map(counted)),
            };
            Term::Path(each(of), Path(parts.into_iter().map(|(p, opt)| (part(p), opt)).collect()))
        }
    }
}

fn counted_pattern(pattern: Pattern<&str>) -> Pattern<&str> {
    match pattern {
        Pattern::Var(_) => pattern,
        Pattern::Arr(all) => Pattern::Arr(all.into_iter().map(counted_pattern).collect()),
        Pattern::Obj(all) => {
            Pattern::Obj(all.into_iter().map(|(k, p)| (counted(k), counted_pattern(p))).collect())
        }
    }
}

/// Functions that count; and some that would reach out of the program or follow hostile input without bound, made harmless.
fn own() -> Vec<Fun<Metered>> {
    vec![
        run((ADD, v(2), |mut cv| {
            let (r, l) = (cv.0.pop_var(), cv.0.pop_var());
            cv.0.data().count.spend(match (&l, &r) {
                (Val::Arr(l), Val::Arr(r)) => r.len() as u64 + l.len() as u64 / OCTETS,
                (Val::Obj(_), Val::Obj(r)) => r.len() as u64,
                _ => (octets(&l) + octets(&r)) / OCTETS,
            });
            bome(l + r)
        })),
        run((SUB, v(2), |mut cv| {
            let (r, l) = (cv.0.pop_var(), cv.0.pop_var());
            if let (Val::Arr(l), Val::Arr(r)) = (&l, &r) {
                cv.0.data().count.spend((l.len() as u64).saturating_mul(r.len() as u64) / OCTETS);
            }
            bome(l - r)
        })),
        run((MUL, v(2), |mut cv| {
            let (r, l) = (cv.0.pop_var(), cv.0.pop_var());
            cv.0.data().count.spend(product(&l, &r));
            bome(l * r)
        })),
        run((NESTED, v(0), |cv| {
            cv.0.data().count.spend(NEST);
            Box::new(std::iter::once(Ok(cv.1)))
        })),
        (
            WEIGHED,
            v(0),
            Native::<Metered>::new(|cv| {
                weigh(&cv.1, cv.0.data().count);
                Box::new(std::iter::once(Ok(cv.1)))
            })
            .with_paths(|cv| {
                weigh(&cv.1.0, cv.0.data().count);
                Box::new(std::iter::once(Ok(cv.1)))
            })
            .with_update(|cv, update| {
                weigh(&cv.1, cv.0.data().count);
                update(cv.1)
            }),
        ),
        run(("range", v(3), |mut cv| {
            let (by, to, from) = (cv.0.pop_var(), cv.0.pop_var(), cv.0.pop_var());
            let meter = *cv.0.data();
            Box::new(
                range(Ok(from), to, by).inspect(move |_| meter.count.spend(2)).map(|x| x.map_err(Exn::from)),
            )
        })),
        run(("fromjson", v(0), |(_, input)| {
            let parsed = match &input {
                Val::TStr(s) | Val::BStr(s) => serde_json::from_slice(s).ok(),
                _ => None,
            };
            let parsed = parsed.ok_or_else(|| jaq_core::Error::str("not JSON").into());
            Box::new(std::iter::once(parsed))
        })),
        run(("halt", v(1), |_| Box::new(std::iter::once(Err(jaq_core::Error::str("halt").into()))))),
        run(("env", v(0), |_| Box::new(std::iter::once(Err(jaq_core::Error::str("no environment").into()))))),
    ]
}

/// Takes a step for each value in `value`, however often it is there.
fn weigh(value: &Val, count: &Count<'_>) {
    match value {
        Val::Arr(all) => all.iter().for_each(|value| {
            count.spend(1);
            weigh(value, count);
        }),
        Val::Obj(all) => all.iter().for_each(|(key, value)| {
            count.spend(1 + octets(key) / OCTETS);
            weigh(value, count);
        }),
        _ => match octets(value) / OCTETS {
            0 => {}
            steps => count.spend(steps),
        },
    }
}

/// Octets of a text or of a large number.
fn octets(value: &Val) -> u64 {
    match value {
        Val::TStr(s) | Val::BStr(s) => s.len() as u64,
        Val::Num(Num::BigInt(n)) => n.bits() / 8,
        Val::Num(Num::Dec(n)) => n.len() as u64,
        _ => 0,
    }
}

/// What a multiplication counts.
fn product(l: &Val, r: &Val) -> u64 {
    let times = |n: &Num| match n {
        Num::Int(n) => u64::try_from(*n).unwrap_or(0),
        Num::Float(n) if *n > 0.0 => *n as u64,
        Num::Float(_) => 0,
        Num::BigInt(_) | Num::Dec(_) => u64::MAX,
    };
    match (l, r) {
        (s @ (Val::TStr(_) | Val::BStr(_)), Val::Num(n))
        | (Val::Num(n), s @ (Val::TStr(_) | Val::BStr(_))) => octets(s).saturating_mul(times(n)) / OCTETS,
        (Val::Obj(l), Val::Obj(r)) => l.len() as u64 + r.len() as u64,
        // Long multiplication of words of 8 octets.
        (l, r) => (octets(l) / 8 + 1).saturating_mul(octets(r) / 8 + 1) / OCTETS,
    }
}

/// As jq counts: from `from` in steps of `by`, not as far as `to`; for ever if `by` leads away from it.
fn range(from: ValR<Val>, to: Val, by: Val) -> impl Iterator<Item = ValR<Val>> {
    let zero = Val::from(0_isize);
    let mut next = Some(from);
    std::iter::from_fn(move || {
        let now = next.take()?;
        if let Ok(x) = &now {
            let on = match by.cmp(&zero) {
                std::cmp::Ordering::Greater => *x < to,
                std::cmp::Ordering::Less => *x > to,
                std::cmp::Ordering::Equal => *x != to,
            };
            if !on {
                return None;
            }
            next = Some(x.clone() + by.clone());
        }
        Some(now)
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

#[cfg(test)]
mod tests;
