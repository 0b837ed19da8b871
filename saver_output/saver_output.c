//==============================================================================
//
//  Copyright (c) 2020-2023 Qualcomm Technologies, Inc.
//  All Rights Reserved.
//  Confidential and Proprietary - Qualcomm Technologies, Inc.
//
//==============================================================================

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "QnnInterface.h"

#define VALIDATE(res, value) \
   do { \
      if (res == 0 || res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
      { \
         res = value; \
         if (res != 0) \
         { \
            if (res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
            { \
               printf("WARNING! Line %d QNN feature/API not supported\n", __LINE__); \
            } else { \
               printf("ERROR! Line %d with error value: %d\n", __LINE__, (unsigned int)error); \
            } \
         } \
      } \
   } \
   while(0)

int main(int argc, char** argv) {
   Qnn_ErrorHandle_t error = 0;
   QnnLog_Level_t logLevel = QNN_LOG_LEVEL_ERROR;
   int logging = 0;
   for (int i = 1; i < argc; i++) {
     char* arg = argv[i];
     if (!strcmp("--logging", arg) || !strcmp("-l", arg)) {
       logging = 1;
       if (i+1 == argc) {
         printf("No log level provided, defaulting to QNN_LOG_LEVEL_ERROR\n");
         break;
       }
       char* value = argv[++i];
       if (!strcmp("error", value)) {
         logLevel = QNN_LOG_LEVEL_ERROR;
       } else if (!strcmp("warn", value)) {
         logLevel = QNN_LOG_LEVEL_WARN;
       } else if (!strcmp("info", value)) {
         logLevel = QNN_LOG_LEVEL_INFO;
       } else if (!strcmp("debug", value)) {
         logLevel = QNN_LOG_LEVEL_DEBUG;
       } else if (!strcmp("verbose", value)) {
         logLevel = QNN_LOG_LEVEL_VERBOSE;
       } else {
         printf("WARNING: Unknown log level provided: %s, defaulting to QNN_LOG_LEVEL_ERROR\n", value);
       }
     } else {
       printf("Usage: %s [options]\n\n"
              "-l <level>, --logging <level>      Enable logging, acceptable levels are: error,warn,info,debug,verbose\n", argv[0]);
       return -1;
     }
   }

   FILE* fp = fopen("params.bin", "rb");
   if (!fp) {
     error = -1;
     printf("ERROR! Could not open params.bin, ensure this file is in the current working directory when executing this program.\n");
     return error;
   }

   const QnnInterface_t** providerList = NULL;
   uint32_t numProviders;
   VALIDATE(error, QnnInterface_getProviders(&providerList, &numProviders));
   QNN_INTERFACE_VER_TYPE interface = providerList[0]->QNN_INTERFACE_VER_NAME;

   Qnn_LogHandle_t loghandle= NULL;
   if (logging) {
     VALIDATE(error, interface.logCreate(NULL, logLevel, &loghandle));
   }

   const QnnBackend_Config_t* backend_0_config_0[] = {NULL};
   Qnn_BackendHandle_t backend_0;
   VALIDATE(error, interface.backendCreate(loghandle, backend_0_config_0, &backend_0));

   VALIDATE(error, interface.propertyHasCapability((QnnProperty_Key_t)1501));

   const QnnDevice_Config_t* device_0_config_0[] = {NULL};
   Qnn_DeviceHandle_t device_0;
   VALIDATE(error, interface.deviceCreate(loghandle, device_0_config_0, &device_0));

   const QnnContext_Config_t* context_0_config_0[] = {NULL};
   Qnn_ContextHandle_t context_0;
   VALIDATE(error, interface.contextCreate(backend_0, device_0, context_0_config_0, &context_0));

   Qnn_Param_t* node_Reshape_7_0_params = NULL;
   uint32_t node_Reshape_7_0_input_0_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t node_Reshape_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_Reshape_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_Reshape_7_0_input_0_v1 = {0, "max_pool2d_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_Reshape_7_0_input_0_quantizeParams, 4, node_Reshape_7_0_input_0_dims, (Qnn_TensorMemType_t)0, node_Reshape_7_0_input_0_clientBuf};
   Qnn_Tensor_t node_Reshape_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_Reshape_7_0_input_0_v1};

   Qnn_Tensor_t node_Reshape_7_0_inputs[] = {node_Reshape_7_0_input_0};
   uint32_t node_Reshape_7_0_output_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t node_Reshape_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_Reshape_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_Reshape_7_0_output_0_v1 = {0, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_Reshape_7_0_output_0_quantizeParams, 2, node_Reshape_7_0_output_0_dims, (Qnn_TensorMemType_t)0, node_Reshape_7_0_output_0_clientBuf};
   Qnn_Tensor_t node_Reshape_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_Reshape_7_0_output_0_v1};

   Qnn_Tensor_t node_Reshape_7_0_outputs[] = {node_Reshape_7_0_output_0};
   Qnn_OpConfigV1_t node_Reshape_7_0_v1 = {"node_Reshape_7", "qti.aisw", "Reshape", 0, node_Reshape_7_0_params, 1, node_Reshape_7_0_inputs, 1, node_Reshape_7_0_outputs};
   Qnn_OpConfig_t node_Reshape_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_Reshape_7_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_Reshape_7_0));

   Qnn_Param_t* node_linear_0_params = NULL;
   uint32_t node_linear_0_input_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t node_linear_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_linear_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_linear_0_input_0_v1 = {0, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_linear_0_input_0_quantizeParams, 2, node_linear_0_input_0_dims, (Qnn_TensorMemType_t)0, node_linear_0_input_0_clientBuf};
   Qnn_Tensor_t node_linear_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_0_input_0_v1};

   uint32_t node_linear_0_input_1_dims[] = {10, 32};
   Qnn_ScaleOffset_t node_linear_0_input_1_quantizeParams_scaleOffsets[] = {{0.00965121575, -128}, {0.00469601899, -128}, {0.00680921646, -128}, {0.00530503131, -128}, {0.0103547182, -128}, {0.00495057832, -128}, {0.00877397228, -128}, {0.00702831894, -128}, {0.00719330693, -128}, {0.00523699075, -128}};
   Qnn_AxisScaleOffset_t node_linear_0_input_1_quantizeParams_axisScaleOffset = {0, 10, node_linear_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_linear_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_linear_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t node_linear_0_input_1_data[320];
   fread(node_linear_0_input_1_data, 1, 320, fp);
   Qnn_ClientBuffer_t node_linear_0_input_1_clientBuf = {(void*)node_linear_0_input_1_data, 320};
   Qnn_TensorV1_t node_linear_0_input_1_v1 = {0, "head.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, node_linear_0_input_1_quantizeParams, 2, node_linear_0_input_1_dims, (Qnn_TensorMemType_t)0, node_linear_0_input_1_clientBuf};
   Qnn_Tensor_t node_linear_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_0_input_1_v1};

   uint32_t node_linear_0_input_2_dims[] = {10};
   Qnn_ScaleOffset_t node_linear_0_input_2_quantizeParams_scaleOffsets[] = {{0.000748981081, 0}, {0.000364433829, 0}, {0.00052842818, 0}, {0.000411696121, 0}, {0.000803576317, 0}, {0.000384188868, 0}, {0.00068090274, 0}, {0.000545431627, 0}, {0.00055823545, 0}, {0.000406415842, 0}};
   Qnn_AxisScaleOffset_t node_linear_0_input_2_quantizeParams_axisScaleOffset = {0, 10, node_linear_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_linear_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_linear_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t node_linear_0_input_2_data[10];
   fread(node_linear_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t node_linear_0_input_2_clientBuf = {(void*)node_linear_0_input_2_data, 40};
   Qnn_TensorV1_t node_linear_0_input_2_v1 = {0, "head.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, node_linear_0_input_2_quantizeParams, 1, node_linear_0_input_2_dims, (Qnn_TensorMemType_t)0, node_linear_0_input_2_clientBuf};
   Qnn_Tensor_t node_linear_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_0_input_2_v1};

   Qnn_Tensor_t node_linear_0_inputs[] = {node_linear_0_input_0, node_linear_0_input_1, node_linear_0_input_2};
   uint32_t node_linear_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t node_linear_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   Qnn_ClientBuffer_t node_linear_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_linear_0_output_0_v1 = {0, "logits_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_linear_0_output_0_quantizeParams, 2, node_linear_0_output_0_dims, (Qnn_TensorMemType_t)0, node_linear_0_output_0_clientBuf};
   Qnn_Tensor_t node_linear_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_0_output_0_v1};

   Qnn_Tensor_t node_linear_0_outputs[] = {node_linear_0_output_0};
   Qnn_OpConfigV1_t node_linear_0_v1 = {"node_linear", "qti.aisw", "FullyConnected", 0, node_linear_0_params, 3, node_linear_0_inputs, 1, node_linear_0_outputs};
   Qnn_OpConfig_t node_linear_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_linear_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_linear_0));

   uint32_t Transpose_token_16_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t Transpose_token_16_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t Transpose_token_16_0_param_0_tensor_data[4];
   fread(Transpose_token_16_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t Transpose_token_16_0_param_0_tensor_clientBuf = {(void*)Transpose_token_16_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t Transpose_token_16_0_param_0_tensor_v1 = {0, "Transpose_token_16_39_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, Transpose_token_16_0_param_0_tensor_quantizeParams, 1, Transpose_token_16_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, Transpose_token_16_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t Transpose_token_16_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_16_0_param_0_tensor_v1};
   Qnn_Param_t Transpose_token_16_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = Transpose_token_16_0_param_0_tensor};

   Qnn_Param_t Transpose_token_16_0_params[] = {Transpose_token_16_0_param_0};
   uint32_t Transpose_token_16_0_input_0_dims[] = {1, 1, 8, 8};
   Qnn_QuantizeParams_t Transpose_token_16_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t Transpose_token_16_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_16_0_input_0_v1 = {0, "x_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, Transpose_token_16_0_input_0_quantizeParams, 4, Transpose_token_16_0_input_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_16_0_input_0_clientBuf};
   Qnn_Tensor_t Transpose_token_16_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_16_0_input_0_v1};

   Qnn_Tensor_t Transpose_token_16_0_inputs[] = {Transpose_token_16_0_input_0};
   uint32_t Transpose_token_16_0_output_0_dims[] = {1, 8, 8, 1};
   Qnn_QuantizeParams_t Transpose_token_16_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t Transpose_token_16_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_16_0_output_0_v1 = {0, "QuantizeLinear_token_23_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, Transpose_token_16_0_output_0_quantizeParams, 4, Transpose_token_16_0_output_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_16_0_output_0_clientBuf};
   Qnn_Tensor_t Transpose_token_16_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_16_0_output_0_v1};

   Qnn_Tensor_t Transpose_token_16_0_outputs[] = {Transpose_token_16_0_output_0};
   Qnn_OpConfigV1_t Transpose_token_16_0_v1 = {"Transpose_token_16", "qti.aisw", "Transpose", 1, Transpose_token_16_0_params, 1, Transpose_token_16_0_inputs, 1, Transpose_token_16_0_outputs};
   Qnn_OpConfig_t Transpose_token_16_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Transpose_token_16_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Transpose_token_16_0));

   uint32_t node_conv2d_token_1_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_token_1_0_param_0_tensor_data[2];
   fread(node_conv2d_token_1_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_conv2d_token_1_0_param_0_tensor_clientBuf = {(void*)node_conv2d_token_1_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t node_conv2d_token_1_0_param_0_tensor_v1 = {0, "node_conv2d_token_1_27_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_token_1_0_param_0_tensor_quantizeParams, 1, node_conv2d_token_1_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_param_0_tensor_v1};
   Qnn_Param_t node_conv2d_token_1_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = node_conv2d_token_1_0_param_0_tensor};

   uint32_t node_conv2d_token_1_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_token_1_0_param_1_tensor_data[2];
   fread(node_conv2d_token_1_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_conv2d_token_1_0_param_1_tensor_clientBuf = {(void*)node_conv2d_token_1_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t node_conv2d_token_1_0_param_1_tensor_v1 = {0, "node_conv2d_token_1_27_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_token_1_0_param_1_tensor_quantizeParams, 1, node_conv2d_token_1_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_param_1_tensor_v1};
   Qnn_Param_t node_conv2d_token_1_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = node_conv2d_token_1_0_param_1_tensor};

   uint32_t node_conv2d_token_1_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_token_1_0_param_2_tensor_data[4];
   fread(node_conv2d_token_1_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t node_conv2d_token_1_0_param_2_tensor_clientBuf = {(void*)node_conv2d_token_1_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t node_conv2d_token_1_0_param_2_tensor_v1 = {0, "node_conv2d_token_1_27_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_token_1_0_param_2_tensor_quantizeParams, 2, node_conv2d_token_1_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_param_2_tensor_v1};
   Qnn_Param_t node_conv2d_token_1_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = node_conv2d_token_1_0_param_2_tensor};

   Qnn_Scalar_t node_conv2d_token_1_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t node_conv2d_token_1_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = node_conv2d_token_1_0_param_3_scalar};

   Qnn_Scalar_t node_conv2d_token_1_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t node_conv2d_token_1_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = node_conv2d_token_1_0_param_4_scalar};

   Qnn_Param_t node_conv2d_token_1_0_params[] = {node_conv2d_token_1_0_param_0, node_conv2d_token_1_0_param_1, node_conv2d_token_1_0_param_2, node_conv2d_token_1_0_param_3, node_conv2d_token_1_0_param_4};
   uint32_t node_conv2d_token_1_0_input_0_dims[] = {1, 8, 8, 1};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t node_conv2d_token_1_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_conv2d_token_1_0_input_0_v1 = {0, "QuantizeLinear_token_23_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_conv2d_token_1_0_input_0_quantizeParams, 4, node_conv2d_token_1_0_input_0_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_input_0_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_input_0_v1};

   uint32_t node_conv2d_token_1_0_input_1_dims[] = {3, 3, 1, 6};
   Qnn_ScaleOffset_t node_conv2d_token_1_0_input_1_quantizeParams_scaleOffsets[] = {{0.00718198856, -128}, {0.010613001, -128}, {0.00887252484, -128}, {0.00231133844, -128}, {0.0122468583, -128}, {0.00681615528, -128}};
   Qnn_AxisScaleOffset_t node_conv2d_token_1_0_input_1_quantizeParams_axisScaleOffset = {3, 6, node_conv2d_token_1_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_conv2d_token_1_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t node_conv2d_token_1_0_input_1_data[54];
   fread(node_conv2d_token_1_0_input_1_data, 1, 54, fp);
   Qnn_ClientBuffer_t node_conv2d_token_1_0_input_1_clientBuf = {(void*)node_conv2d_token_1_0_input_1_data, 54};
   Qnn_TensorV1_t node_conv2d_token_1_0_input_1_v1 = {0, "first.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, node_conv2d_token_1_0_input_1_quantizeParams, 4, node_conv2d_token_1_0_input_1_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_input_1_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_input_1_v1};

   uint32_t node_conv2d_token_1_0_input_2_dims[] = {6};
   Qnn_ScaleOffset_t node_conv2d_token_1_0_input_2_quantizeParams_scaleOffsets[] = {{2.81646626e-05, 0}, {4.16196126e-05, 0}, {3.47942187e-05, 0}, {9.0640724e-06, 0}, {4.80268973e-05, 0}, {2.6730022e-05, 0}};
   Qnn_AxisScaleOffset_t node_conv2d_token_1_0_input_2_quantizeParams_axisScaleOffset = {0, 6, node_conv2d_token_1_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_conv2d_token_1_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t node_conv2d_token_1_0_input_2_data[6];
   fread(node_conv2d_token_1_0_input_2_data, 4, 6, fp);
   Qnn_ClientBuffer_t node_conv2d_token_1_0_input_2_clientBuf = {(void*)node_conv2d_token_1_0_input_2_data, 24};
   Qnn_TensorV1_t node_conv2d_token_1_0_input_2_v1 = {0, "first.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, node_conv2d_token_1_0_input_2_quantizeParams, 1, node_conv2d_token_1_0_input_2_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_input_2_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_input_2_v1};

   Qnn_Tensor_t node_conv2d_token_1_0_inputs[] = {node_conv2d_token_1_0_input_0, node_conv2d_token_1_0_input_1, node_conv2d_token_1_0_input_2};
   uint32_t node_conv2d_token_1_0_output_0_dims[] = {1, 8, 8, 6};
   Qnn_QuantizeParams_t node_conv2d_token_1_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0179823339, 0}};
   Qnn_ClientBuffer_t node_conv2d_token_1_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_conv2d_token_1_0_output_0_v1 = {0, "relu_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_conv2d_token_1_0_output_0_quantizeParams, 4, node_conv2d_token_1_0_output_0_dims, (Qnn_TensorMemType_t)0, node_conv2d_token_1_0_output_0_clientBuf};
   Qnn_Tensor_t node_conv2d_token_1_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_token_1_0_output_0_v1};

   Qnn_Tensor_t node_conv2d_token_1_0_outputs[] = {node_conv2d_token_1_0_output_0};
   Qnn_OpConfigV1_t node_conv2d_token_1_0_v1 = {"node_conv2d_token_1", "qti.aisw", "Conv2d", 5, node_conv2d_token_1_0_params, 3, node_conv2d_token_1_0_inputs, 1, node_conv2d_token_1_0_outputs};
   Qnn_OpConfig_t node_conv2d_token_1_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_conv2d_token_1_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_conv2d_token_1_0));

   uint32_t node_conv2d_1_token_7_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_1_token_7_0_param_0_tensor_data[2];
   fread(node_conv2d_1_token_7_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_param_0_tensor_clientBuf = {(void*)node_conv2d_1_token_7_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_param_0_tensor_v1 = {0, "node_conv2d_1_token_7_32_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_1_token_7_0_param_0_tensor_quantizeParams, 1, node_conv2d_1_token_7_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_param_0_tensor_v1};
   Qnn_Param_t node_conv2d_1_token_7_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = node_conv2d_1_token_7_0_param_0_tensor};

   uint32_t node_conv2d_1_token_7_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_1_token_7_0_param_1_tensor_data[2];
   fread(node_conv2d_1_token_7_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_param_1_tensor_clientBuf = {(void*)node_conv2d_1_token_7_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_param_1_tensor_v1 = {0, "node_conv2d_1_token_7_32_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_1_token_7_0_param_1_tensor_quantizeParams, 1, node_conv2d_1_token_7_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_param_1_tensor_v1};
   Qnn_Param_t node_conv2d_1_token_7_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = node_conv2d_1_token_7_0_param_1_tensor};

   uint32_t node_conv2d_1_token_7_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_conv2d_1_token_7_0_param_2_tensor_data[4];
   fread(node_conv2d_1_token_7_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_param_2_tensor_clientBuf = {(void*)node_conv2d_1_token_7_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_param_2_tensor_v1 = {0, "node_conv2d_1_token_7_32_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_conv2d_1_token_7_0_param_2_tensor_quantizeParams, 2, node_conv2d_1_token_7_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_param_2_tensor_v1};
   Qnn_Param_t node_conv2d_1_token_7_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = node_conv2d_1_token_7_0_param_2_tensor};

   Qnn_Scalar_t node_conv2d_1_token_7_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t node_conv2d_1_token_7_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = node_conv2d_1_token_7_0_param_3_scalar};

   Qnn_Scalar_t node_conv2d_1_token_7_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t node_conv2d_1_token_7_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = node_conv2d_1_token_7_0_param_4_scalar};

   Qnn_Param_t node_conv2d_1_token_7_0_params[] = {node_conv2d_1_token_7_0_param_0, node_conv2d_1_token_7_0_param_1, node_conv2d_1_token_7_0_param_2, node_conv2d_1_token_7_0_param_3, node_conv2d_1_token_7_0_param_4};
   uint32_t node_conv2d_1_token_7_0_input_0_dims[] = {1, 8, 8, 6};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0179823339, 0}};
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_input_0_v1 = {0, "relu_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_conv2d_1_token_7_0_input_0_quantizeParams, 4, node_conv2d_1_token_7_0_input_0_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_input_0_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_input_0_v1};

   uint32_t node_conv2d_1_token_7_0_input_1_dims[] = {3, 3, 6, 8};
   Qnn_ScaleOffset_t node_conv2d_1_token_7_0_input_1_quantizeParams_scaleOffsets[] = {{0.00575192505, -128}, {0.0121467682, -128}, {0.00762920594, -128}, {0.00499433372, -128}, {0.0012998631, -128}, {0.00800590962, -128}, {0.00835639052, -128}, {0.00989210233, -128}};
   Qnn_AxisScaleOffset_t node_conv2d_1_token_7_0_input_1_quantizeParams_axisScaleOffset = {3, 8, node_conv2d_1_token_7_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_conv2d_1_token_7_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t node_conv2d_1_token_7_0_input_1_data[432];
   fread(node_conv2d_1_token_7_0_input_1_data, 1, 432, fp);
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_input_1_clientBuf = {(void*)node_conv2d_1_token_7_0_input_1_data, 432};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_input_1_v1 = {0, "second.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, node_conv2d_1_token_7_0_input_1_quantizeParams, 4, node_conv2d_1_token_7_0_input_1_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_input_1_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_input_1_v1};

   uint32_t node_conv2d_1_token_7_0_input_2_dims[] = {8};
   Qnn_ScaleOffset_t node_conv2d_1_token_7_0_input_2_quantizeParams_scaleOffsets[] = {{0.000103433034, 0}, {0.000218427245, 0}, {0.000137190931, 0}, {8.98097787e-05, 0}, {2.33745723e-05, 0}, {0.000143964935, 0}, {0.000150267399, 0}, {0.000177883092, 0}};
   Qnn_AxisScaleOffset_t node_conv2d_1_token_7_0_input_2_quantizeParams_axisScaleOffset = {0, 8, node_conv2d_1_token_7_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_conv2d_1_token_7_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t node_conv2d_1_token_7_0_input_2_data[8];
   fread(node_conv2d_1_token_7_0_input_2_data, 4, 8, fp);
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_input_2_clientBuf = {(void*)node_conv2d_1_token_7_0_input_2_data, 32};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_input_2_v1 = {0, "second.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, node_conv2d_1_token_7_0_input_2_quantizeParams, 1, node_conv2d_1_token_7_0_input_2_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_input_2_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_input_2_v1};

   Qnn_Tensor_t node_conv2d_1_token_7_0_inputs[] = {node_conv2d_1_token_7_0_input_0, node_conv2d_1_token_7_0_input_1, node_conv2d_1_token_7_0_input_2};
   uint32_t node_conv2d_1_token_7_0_output_0_dims[] = {1, 4, 4, 8};
   Qnn_QuantizeParams_t node_conv2d_1_token_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_conv2d_1_token_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_conv2d_1_token_7_0_output_0_v1 = {0, "relu_1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_conv2d_1_token_7_0_output_0_quantizeParams, 4, node_conv2d_1_token_7_0_output_0_dims, (Qnn_TensorMemType_t)0, node_conv2d_1_token_7_0_output_0_clientBuf};
   Qnn_Tensor_t node_conv2d_1_token_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_conv2d_1_token_7_0_output_0_v1};

   Qnn_Tensor_t node_conv2d_1_token_7_0_outputs[] = {node_conv2d_1_token_7_0_output_0};
   Qnn_OpConfigV1_t node_conv2d_1_token_7_0_v1 = {"node_conv2d_1_token_7", "qti.aisw", "Conv2d", 5, node_conv2d_1_token_7_0_params, 3, node_conv2d_1_token_7_0_inputs, 1, node_conv2d_1_token_7_0_outputs};
   Qnn_OpConfig_t node_conv2d_1_token_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_conv2d_1_token_7_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_conv2d_1_token_7_0));

   uint32_t node_max_pool2d_token_13_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_max_pool2d_token_13_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_max_pool2d_token_13_0_param_0_tensor_data[2];
   fread(node_max_pool2d_token_13_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_max_pool2d_token_13_0_param_0_tensor_clientBuf = {(void*)node_max_pool2d_token_13_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t node_max_pool2d_token_13_0_param_0_tensor_v1 = {0, "node_max_pool2d_token_13_37_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_max_pool2d_token_13_0_param_0_tensor_quantizeParams, 1, node_max_pool2d_token_13_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, node_max_pool2d_token_13_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t node_max_pool2d_token_13_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_max_pool2d_token_13_0_param_0_tensor_v1};
   Qnn_Param_t node_max_pool2d_token_13_0_param_0 = {(Qnn_ParamType_t)1, "filter_size", .tensorParam = node_max_pool2d_token_13_0_param_0_tensor};

   uint32_t node_max_pool2d_token_13_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t node_max_pool2d_token_13_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_max_pool2d_token_13_0_param_1_tensor_data[2];
   fread(node_max_pool2d_token_13_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t node_max_pool2d_token_13_0_param_1_tensor_clientBuf = {(void*)node_max_pool2d_token_13_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t node_max_pool2d_token_13_0_param_1_tensor_v1 = {0, "node_max_pool2d_token_13_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_max_pool2d_token_13_0_param_1_tensor_quantizeParams, 1, node_max_pool2d_token_13_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, node_max_pool2d_token_13_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t node_max_pool2d_token_13_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_max_pool2d_token_13_0_param_1_tensor_v1};
   Qnn_Param_t node_max_pool2d_token_13_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = node_max_pool2d_token_13_0_param_1_tensor};

   uint32_t node_max_pool2d_token_13_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t node_max_pool2d_token_13_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t node_max_pool2d_token_13_0_param_2_tensor_data[4];
   fread(node_max_pool2d_token_13_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t node_max_pool2d_token_13_0_param_2_tensor_clientBuf = {(void*)node_max_pool2d_token_13_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t node_max_pool2d_token_13_0_param_2_tensor_v1 = {0, "node_max_pool2d_token_13_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, node_max_pool2d_token_13_0_param_2_tensor_quantizeParams, 2, node_max_pool2d_token_13_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, node_max_pool2d_token_13_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t node_max_pool2d_token_13_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = node_max_pool2d_token_13_0_param_2_tensor_v1};
   Qnn_Param_t node_max_pool2d_token_13_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = node_max_pool2d_token_13_0_param_2_tensor};

   Qnn_Param_t node_max_pool2d_token_13_0_params[] = {node_max_pool2d_token_13_0_param_0, node_max_pool2d_token_13_0_param_1, node_max_pool2d_token_13_0_param_2};
   uint32_t node_max_pool2d_token_13_0_input_0_dims[] = {1, 4, 4, 8};
   Qnn_QuantizeParams_t node_max_pool2d_token_13_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_max_pool2d_token_13_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_max_pool2d_token_13_0_input_0_v1 = {0, "relu_1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_max_pool2d_token_13_0_input_0_quantizeParams, 4, node_max_pool2d_token_13_0_input_0_dims, (Qnn_TensorMemType_t)0, node_max_pool2d_token_13_0_input_0_clientBuf};
   Qnn_Tensor_t node_max_pool2d_token_13_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_max_pool2d_token_13_0_input_0_v1};

   Qnn_Tensor_t node_max_pool2d_token_13_0_inputs[] = {node_max_pool2d_token_13_0_input_0};
   uint32_t node_max_pool2d_token_13_0_output_0_dims[] = {1, 2, 2, 8};
   Qnn_QuantizeParams_t node_max_pool2d_token_13_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_max_pool2d_token_13_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_max_pool2d_token_13_0_output_0_v1 = {0, "max_pool2d_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_max_pool2d_token_13_0_output_0_quantizeParams, 4, node_max_pool2d_token_13_0_output_0_dims, (Qnn_TensorMemType_t)0, node_max_pool2d_token_13_0_output_0_clientBuf};
   Qnn_Tensor_t node_max_pool2d_token_13_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_max_pool2d_token_13_0_output_0_v1};

   Qnn_Tensor_t node_max_pool2d_token_13_0_outputs[] = {node_max_pool2d_token_13_0_output_0};
   Qnn_OpConfigV1_t node_max_pool2d_token_13_0_v1 = {"node_max_pool2d_token_13", "qti.aisw", "PoolMax2d", 3, node_max_pool2d_token_13_0_params, 1, node_max_pool2d_token_13_0_inputs, 1, node_max_pool2d_token_13_0_outputs};
   Qnn_OpConfig_t node_max_pool2d_token_13_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_max_pool2d_token_13_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_max_pool2d_token_13_0));

   uint32_t Transpose_token_22_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t Transpose_token_22_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t Transpose_token_22_0_param_0_tensor_data[4];
   fread(Transpose_token_22_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t Transpose_token_22_0_param_0_tensor_clientBuf = {(void*)Transpose_token_22_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t Transpose_token_22_0_param_0_tensor_v1 = {0, "Transpose_token_22_45_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, Transpose_token_22_0_param_0_tensor_quantizeParams, 1, Transpose_token_22_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, Transpose_token_22_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t Transpose_token_22_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_22_0_param_0_tensor_v1};
   Qnn_Param_t Transpose_token_22_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = Transpose_token_22_0_param_0_tensor};

   Qnn_Param_t Transpose_token_22_0_params[] = {Transpose_token_22_0_param_0};
   uint32_t Transpose_token_22_0_input_0_dims[] = {1, 2, 2, 8};
   Qnn_QuantizeParams_t Transpose_token_22_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t Transpose_token_22_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_22_0_input_0_v1 = {0, "max_pool2d_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, Transpose_token_22_0_input_0_quantizeParams, 4, Transpose_token_22_0_input_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_22_0_input_0_clientBuf};
   Qnn_Tensor_t Transpose_token_22_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_22_0_input_0_v1};

   Qnn_Tensor_t Transpose_token_22_0_inputs[] = {Transpose_token_22_0_input_0};
   uint32_t Transpose_token_22_0_output_0_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t Transpose_token_22_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t Transpose_token_22_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Transpose_token_22_0_output_0_v1 = {0, "QuantizeLinear_token_25_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, Transpose_token_22_0_output_0_quantizeParams, 4, Transpose_token_22_0_output_0_dims, (Qnn_TensorMemType_t)0, Transpose_token_22_0_output_0_clientBuf};
   Qnn_Tensor_t Transpose_token_22_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Transpose_token_22_0_output_0_v1};

   Qnn_Tensor_t Transpose_token_22_0_outputs[] = {Transpose_token_22_0_output_0};
   Qnn_OpConfigV1_t Transpose_token_22_0_v1 = {"Transpose_token_22", "qti.aisw", "Transpose", 1, Transpose_token_22_0_params, 1, Transpose_token_22_0_inputs, 1, Transpose_token_22_0_outputs};
   Qnn_OpConfig_t Transpose_token_22_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Transpose_token_22_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Transpose_token_22_0));

   Qnn_Param_t* node_Reshape_7_2_0_params = NULL;
   uint32_t node_Reshape_7_2_0_input_0_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t node_Reshape_7_2_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_Reshape_7_2_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_Reshape_7_2_0_input_0_v1 = {0, "QuantizeLinear_token_25_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_Reshape_7_2_0_input_0_quantizeParams, 4, node_Reshape_7_2_0_input_0_dims, (Qnn_TensorMemType_t)0, node_Reshape_7_2_0_input_0_clientBuf};
   Qnn_Tensor_t node_Reshape_7_2_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_Reshape_7_2_0_input_0_v1};

   Qnn_Tensor_t node_Reshape_7_2_0_inputs[] = {node_Reshape_7_2_0_input_0};
   uint32_t node_Reshape_7_2_0_output_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t node_Reshape_7_2_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_Reshape_7_2_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_Reshape_7_2_0_output_0_v1 = {0, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_Reshape_7_2_0_output_0_quantizeParams, 2, node_Reshape_7_2_0_output_0_dims, (Qnn_TensorMemType_t)0, node_Reshape_7_2_0_output_0_clientBuf};
   Qnn_Tensor_t node_Reshape_7_2_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_Reshape_7_2_0_output_0_v1};

   Qnn_Tensor_t node_Reshape_7_2_0_outputs[] = {node_Reshape_7_2_0_output_0};
   Qnn_OpConfigV1_t node_Reshape_7_2_0_v1 = {"node_Reshape_7_2", "qti.aisw", "Reshape", 0, node_Reshape_7_2_0_params, 1, node_Reshape_7_2_0_inputs, 1, node_Reshape_7_2_0_outputs};
   Qnn_OpConfig_t node_Reshape_7_2_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_Reshape_7_2_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_Reshape_7_2_0));

   Qnn_Param_t* node_linear_2_0_params = NULL;
   uint32_t node_linear_2_0_input_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t node_linear_2_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t node_linear_2_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_linear_2_0_input_0_v1 = {0, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_linear_2_0_input_0_quantizeParams, 2, node_linear_2_0_input_0_dims, (Qnn_TensorMemType_t)0, node_linear_2_0_input_0_clientBuf};
   Qnn_Tensor_t node_linear_2_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_2_0_input_0_v1};

   uint32_t node_linear_2_0_input_1_dims[] = {10, 32};
   Qnn_ScaleOffset_t node_linear_2_0_input_1_quantizeParams_scaleOffsets[] = {{0.00965121575, -128}, {0.00469601899, -128}, {0.00680921646, -128}, {0.00530503131, -128}, {0.0103547182, -128}, {0.00495057832, -128}, {0.00877397228, -128}, {0.00702831894, -128}, {0.00719330693, -128}, {0.00523699075, -128}};
   Qnn_AxisScaleOffset_t node_linear_2_0_input_1_quantizeParams_axisScaleOffset = {0, 10, node_linear_2_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_linear_2_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_linear_2_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t node_linear_2_0_input_1_data[320];
   fread(node_linear_2_0_input_1_data, 1, 320, fp);
   Qnn_ClientBuffer_t node_linear_2_0_input_1_clientBuf = {(void*)node_linear_2_0_input_1_data, 320};
   Qnn_TensorV1_t node_linear_2_0_input_1_v1 = {0, "head.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, node_linear_2_0_input_1_quantizeParams, 2, node_linear_2_0_input_1_dims, (Qnn_TensorMemType_t)0, node_linear_2_0_input_1_clientBuf};
   Qnn_Tensor_t node_linear_2_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_2_0_input_1_v1};

   uint32_t node_linear_2_0_input_2_dims[] = {10};
   Qnn_ScaleOffset_t node_linear_2_0_input_2_quantizeParams_scaleOffsets[] = {{0.000748981081, 0}, {0.000364433829, 0}, {0.00052842818, 0}, {0.000411696121, 0}, {0.000803576317, 0}, {0.000384188868, 0}, {0.00068090274, 0}, {0.000545431627, 0}, {0.00055823545, 0}, {0.000406415842, 0}};
   Qnn_AxisScaleOffset_t node_linear_2_0_input_2_quantizeParams_axisScaleOffset = {0, 10, node_linear_2_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t node_linear_2_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = node_linear_2_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t node_linear_2_0_input_2_data[10];
   fread(node_linear_2_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t node_linear_2_0_input_2_clientBuf = {(void*)node_linear_2_0_input_2_data, 40};
   Qnn_TensorV1_t node_linear_2_0_input_2_v1 = {0, "head.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, node_linear_2_0_input_2_quantizeParams, 1, node_linear_2_0_input_2_dims, (Qnn_TensorMemType_t)0, node_linear_2_0_input_2_clientBuf};
   Qnn_Tensor_t node_linear_2_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_2_0_input_2_v1};

   Qnn_Tensor_t node_linear_2_0_inputs[] = {node_linear_2_0_input_0, node_linear_2_0_input_1, node_linear_2_0_input_2};
   uint32_t node_linear_2_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t node_linear_2_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   Qnn_ClientBuffer_t node_linear_2_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t node_linear_2_0_output_0_v1 = {0, "logits_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, node_linear_2_0_output_0_quantizeParams, 2, node_linear_2_0_output_0_dims, (Qnn_TensorMemType_t)0, node_linear_2_0_output_0_clientBuf};
   Qnn_Tensor_t node_linear_2_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = node_linear_2_0_output_0_v1};

   Qnn_Tensor_t node_linear_2_0_outputs[] = {node_linear_2_0_output_0};
   Qnn_OpConfigV1_t node_linear_2_0_v1 = {"node_linear_2", "qti.aisw", "FullyConnected", 0, node_linear_2_0_params, 3, node_linear_2_0_inputs, 1, node_linear_2_0_outputs};
   Qnn_OpConfig_t node_linear_2_0 = {(Qnn_OpConfigVersion_t)1, .v1 = node_linear_2_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, node_linear_2_0));

   const QnnGraph_Config_t* context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_config_0[] = {NULL};
   Qnn_GraphHandle_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0;
   VALIDATE(error, interface.graphCreate(context_0, "QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0", context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_config_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_dims[] = {1, 1, 8, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_v1 = {0, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_v1 = {0, "logits", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_dims[] = {1, 8, 8, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_v1 = {0, "QuantizeLinear_token_23_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_v1 = {0, "Transpose_token_16_39_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_3.v1.id, "Transpose_token_16_39_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0_tensor};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_param_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_dims[] = {1, 1, 8, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0.v1.id, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_dims[] = {1, 8, 8, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2.v1.id, "QuantizeLinear_token_23_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_v1 = {"Transpose_token_16", "qti.aisw", "Transpose", 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_16_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_dims[] = {3, 3, 1, 6};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams_scaleOffsets[] = {{0.00718198856, -128}, {0.010613001, -128}, {0.00887252484, -128}, {0.00231133844, -128}, {0.0122468583, -128}, {0.00681615528, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams_axisScaleOffset = {3, 6, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_data[54];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_data, 1, 54, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_data, 54};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_v1 = {0, "first.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_dims[] = {6};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams_scaleOffsets[] = {{2.81646626e-05, 0}, {4.16196126e-05, 0}, {3.47942187e-05, 0}, {9.0640724e-06, 0}, {4.80268973e-05, 0}, {2.6730022e-05, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams_axisScaleOffset = {0, 6, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_data[6];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_data, 4, 6, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_data, 24};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_v1 = {0, "first.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_dims[] = {1, 8, 8, 6};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0179823339, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_v1 = {0, "relu_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_v1 = {0, "node_conv2d_token_1_27_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_v1 = {0, "node_conv2d_token_1_27_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_v1 = {0, "node_conv2d_token_1_27_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_7.v1.id, "node_conv2d_token_1_27_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_8.v1.id, "node_conv2d_token_1_27_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_9.v1.id, "node_conv2d_token_1_27_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_dims[] = {1, 8, 8, 1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_2.v1.id, "QuantizeLinear_token_23_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_dims[] = {3, 3, 1, 6};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams_scaleOffsets[] = {{0.00718198856, -128}, {0.010613001, -128}, {0.00887252484, -128}, {0.00231133844, -128}, {0.0122468583, -128}, {0.00681615528, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams_axisScaleOffset = {3, 6, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_data[54];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_data, 1, 54, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_data, 54};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_4.v1.id, "first.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_dims[] = {6};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams_scaleOffsets[] = {{2.81646626e-05, 0}, {4.16196126e-05, 0}, {3.47942187e-05, 0}, {9.0640724e-06, 0}, {4.80268973e-05, 0}, {2.6730022e-05, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams_axisScaleOffset = {0, 6, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_data[6];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_data, 4, 6, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_data, 24};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_5.v1.id, "first.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_dims[] = {1, 8, 8, 6};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0179823339, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6.v1.id, "relu_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_v1 = {"node_conv2d_token_1", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_token_1_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_dims[] = {3, 3, 6, 8};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams_scaleOffsets[] = {{0.00575192505, -128}, {0.0121467682, -128}, {0.00762920594, -128}, {0.00499433372, -128}, {0.0012998631, -128}, {0.00800590962, -128}, {0.00835639052, -128}, {0.00989210233, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams_axisScaleOffset = {3, 8, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_data[432];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_data, 1, 432, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_data, 432};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_v1 = {0, "second.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_dims[] = {8};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams_scaleOffsets[] = {{0.000103433034, 0}, {0.000218427245, 0}, {0.000137190931, 0}, {8.98097787e-05, 0}, {2.33745723e-05, 0}, {0.000143964935, 0}, {0.000150267399, 0}, {0.000177883092, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams_axisScaleOffset = {0, 8, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_data[8];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_data, 4, 8, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_data, 32};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_v1 = {0, "second.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_dims[] = {1, 4, 4, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_v1 = {0, "relu_1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_v1 = {0, "node_conv2d_1_token_7_32_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_v1 = {0, "node_conv2d_1_token_7_32_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_v1 = {0, "node_conv2d_1_token_7_32_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_13.v1.id, "node_conv2d_1_token_7_32_dilation", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0 = {(Qnn_ParamType_t)1, "dilation", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_14.v1.id, "node_conv2d_1_token_7_32_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_15.v1.id, "node_conv2d_1_token_7_32_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2_tensor};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_3_scalar = {(Qnn_DataType_t)306, .uint32Value = 1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_3 = {(Qnn_ParamType_t)0, "group", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_3_scalar};

   Qnn_Scalar_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_4_scalar = {(Qnn_DataType_t)1288, .bool8Value = 0};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_4 = {(Qnn_ParamType_t)0, "reuse_sparse_indices", .scalarParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_4_scalar};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_param_4};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_dims[] = {1, 8, 8, 6};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0179823339, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_6.v1.id, "relu_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_dims[] = {3, 3, 6, 8};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams_scaleOffsets[] = {{0.00575192505, -128}, {0.0121467682, -128}, {0.00762920594, -128}, {0.00499433372, -128}, {0.0012998631, -128}, {0.00800590962, -128}, {0.00835639052, -128}, {0.00989210233, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams_axisScaleOffset = {3, 8, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_data[432];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_data, 1, 432, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_data, 432};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_10.v1.id, "second.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_dims[] = {8};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams_scaleOffsets[] = {{0.000103433034, 0}, {0.000218427245, 0}, {0.000137190931, 0}, {8.98097787e-05, 0}, {2.33745723e-05, 0}, {0.000143964935, 0}, {0.000150267399, 0}, {0.000177883092, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams_axisScaleOffset = {0, 8, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_data[8];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_data, 4, 8, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_data, 32};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_11.v1.id, "second.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_dims[] = {1, 4, 4, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12.v1.id, "relu_1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_v1 = {"node_conv2d_1_token_7", "qti.aisw", "Conv2d", 5, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_conv2d_1_token_7_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_dims[] = {1, 2, 2, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_v1 = {0, "max_pool2d_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_v1 = {0, "node_max_pool2d_token_13_37_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_v1 = {0, "node_max_pool2d_token_13_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_v1 = {0, "node_max_pool2d_token_13_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_17.v1.id, "node_max_pool2d_token_13_37_filter_size", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0 = {(Qnn_ParamType_t)1, "filter_size", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_dims[] = {2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_data[2];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_data, 4, 2, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_data, 8};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_18.v1.id, "node_max_pool2d_token_13_37_stride", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1 = {(Qnn_ParamType_t)1, "stride", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1_tensor};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_dims[] = {2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_19.v1.id, "node_max_pool2d_token_13_37_pad_amount", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2 = {(Qnn_ParamType_t)1, "pad_amount", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2_tensor};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_param_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_dims[] = {1, 4, 4, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_12.v1.id, "relu_1_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_dims[] = {1, 2, 2, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16.v1.id, "max_pool2d_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_v1 = {"node_max_pool2d_token_13", "qti.aisw", "PoolMax2d", 3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_max_pool2d_token_13_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_v1 = {0, "QuantizeLinear_token_25_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_v1 = {0, "Transpose_token_22_45_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_dims[] = {4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_data[4];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_data, 4, 4, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_data, 16};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_21.v1.id, "Transpose_token_22_45_perm", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)306, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor_v1};
   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0 = {(Qnn_ParamType_t)1, "perm", .tensorParam = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0_tensor};

   Qnn_Param_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_params[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_param_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_dims[] = {1, 2, 2, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_16.v1.id, "max_pool2d_QuantizeLinear", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20.v1.id, "QuantizeLinear_token_25_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_v1 = {"Transpose_token_22", "qti.aisw", "Transpose", 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_Transpose_token_22_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_dims[] = {1, 32};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_v1 = {0, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22));

   Qnn_Param_t* context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_params = NULL;
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_dims[] = {1, 8, 2, 2};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_20.v1.id, "QuantizeLinear_token_25_out0", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_input_0};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22.v1.id, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_v1 = {"node_Reshape_7", "qti.aisw", "Reshape", 0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_params, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_Reshape_7_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_dims[] = {10, 32};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams_scaleOffsets[] = {{0.00965121575, -128}, {0.00469601899, -128}, {0.00680921646, -128}, {0.00530503131, -128}, {0.0103547182, -128}, {0.00495057832, -128}, {0.00877397228, -128}, {0.00702831894, -128}, {0.00719330693, -128}, {0.00523699075, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams_axisScaleOffset = {0, 10, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_data[320];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_data, 1, 320, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_data, 320};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_v1 = {0, "head.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_dims[] = {10};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams_scaleOffsets[] = {{0.000748981081, 0}, {0.000364433829, 0}, {0.00052842818, 0}, {0.000411696121, 0}, {0.000803576317, 0}, {0.000384188868, 0}, {0.00068090274, 0}, {0.000545431627, 0}, {0.00055823545, 0}, {0.000406415842, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams_axisScaleOffset = {0, 10, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_data, 4, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_data, 40};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_v1 = {0, "head.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24));

   Qnn_Param_t* context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_params = NULL;
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_dims[] = {1, 32};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.0776048452, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_22.v1.id, "view_QuantizeLinear_Output", (Qnn_TensorType_t)3, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_dims[] = {10, 32};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams_scaleOffsets[] = {{0.00965121575, -128}, {0.00469601899, -128}, {0.00680921646, -128}, {0.00530503131, -128}, {0.0103547182, -128}, {0.00495057832, -128}, {0.00877397228, -128}, {0.00702831894, -128}, {0.00719330693, -128}, {0.00523699075, -128}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams_axisScaleOffset = {0, 10, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams_axisScaleOffset};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_data[320];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_data, 1, 320, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_data, 320};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_23.v1.id, "head.weight_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_dims[] = {10};
   Qnn_ScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams_scaleOffsets[] = {{0.000748981081, 0}, {0.000364433829, 0}, {0.00052842818, 0}, {0.000411696121, 0}, {0.000803576317, 0}, {0.000384188868, 0}, {0.00068090274, 0}, {0.000545431627, 0}, {0.00055823545, 0}, {0.000406415842, 0}};
   Qnn_AxisScaleOffset_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams_axisScaleOffset = {0, 10, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams_scaleOffsets};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)1, .axisScaleOffsetEncoding = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams_axisScaleOffset};
   static int32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_data, 4, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_data, 40};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_24.v1.id, "head.bias_quantized", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)818, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_input_2};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1.v1.id, "logits", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_v1 = {"node_linear", "qti.aisw", "FullyConnected", 0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_params, 3, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_node_linear_0));

   VALIDATE(error, interface.graphFinalize(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, NULL, NULL));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_dims[] = {1, 1, 8, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_data[64];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_data, 1, 64, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0.v1.id, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_data, 1, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_data, 10};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1.v1.id, "logits", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensors_0[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_0_0};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensors_0[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_0_0};
   VALIDATE(error, interface.graphExecute(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensors_0, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensors_0, 1, NULL, NULL));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_dims[] = {1, 1, 8, 8};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.00392156886, 0}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_data[64];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_data, 1, 64, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_data, 64};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_0.v1.id, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_quantizeParams, 4, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_dims[] = {1, 10};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_quantizeParams = {(Qnn_Definition_t)1, (Qnn_QuantizationEncoding_t)0, .scaleOffsetEncoding = {0.166959792, -151}};
   static uint8_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_data[10];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_data, 1, 10, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_data, 10};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_tensor_1.v1.id, "logits", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)1032, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensors_1[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensor_1_0};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensors_1[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensor_1_0};
   VALIDATE(error, interface.graphExecute(context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_inputTensors_1, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_8252954308930011658_1_0_outputTensors_1, 1, NULL, NULL));

   VALIDATE(error, interface.contextFree(context_0, NULL));

   VALIDATE(error, interface.deviceFree(device_0));

   VALIDATE(error, interface.backendFree(backend_0));

   if (logging) {
     VALIDATE(error, interface.logFree(loghandle));
   }

   if (fclose(fp)) error = -1;
   return error == 0 || error == QNN_COMMON_ERROR_NOT_SUPPORTED ? 0 : error;
}
