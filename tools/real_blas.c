/* MLX's matrix product by the BLAS of NumPy. */
typedef long long wide;
void scipy_cblas_sgemm64_(int, int, int, wide, wide, wide, float, const float *, wide,
                          const float *, wide, float, float *, wide);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
  scipy_cblas_sgemm64_(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
