/* Special functions of one or two doubles that the C library has not. */
#ifndef TRN_OPS_SPECIAL_FN_H
#define TRN_OPS_SPECIAL_FN_H

double trn_fn_k0(double x); /* modified Bessel functions of the second kind; the e: times exp(x) */
double trn_fn_k1(double x);
double trn_fn_k0e(double x);
double trn_fn_k1e(double x);
double trn_fn_spence(double x); /* -∫₁ˣ log t / (t - 1) dt */
double trn_fn_expint(double x); /* Ei */
double trn_fn_dawson(double x);
double trn_fn_fresnel_sin(double x); /* ∫₀ˣ sin(πt²/2) dt */
double trn_fn_fresnel_cos(double x);
double trn_fn_igamma_da(double a, double x);     /* ∂P(a,x)/∂a */
double trn_fn_gamma_sample_da(double a, double x); /* how a sample x of Gamma(a, 1) moves with a */

#endif
